/** The log-in page. It appears at the start and whenever the server answers 401. */

import { useState } from 'preact/hooks';
import { errorText } from '../api/client';
import { logIn } from '../api/session';
import { Button, Command, Failure } from '../parts/basics';
import { TextField } from '../parts/fields';

export function LogIn() {
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  document.title = 'Log in – Hindcast';
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    await logIn(name, password).catch((reason) => setError(errorText(reason)));
    setBusy(false);
  };
  return (
    <main class="log-in">
      <form onSubmit={submit}>
        <h1>Log in to Hindcast</h1>
        <TextField label="Name" value={name} onInput={setName} autocomplete="username" required first />
        <TextField
          label="Password"
          type="password"
          value={password}
          onInput={setPassword}
          autocomplete="current-password"
          required
        />
        {error && <Failure what="The log-in failed." error={error} />}
        <Button type="submit" kind="main" disabled={busy}>
          Log in
        </Button>
        <div class="stack tight soft small">
          <p>
            Without a password, run this command on the server's machine. It prints a link that works once.
          </p>
          <Command text="hindcast console" />
        </div>
      </form>
    </main>
  );
}
