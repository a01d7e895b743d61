/** Problems that the server found, worst first, each with what to do. */

import type { Problem } from '../api/schema';
import { HELP } from '../lib/help-texts';
import { Badge, Time, Words } from '../parts/basics';
import { Icon } from '../parts/icon';

const RANK = { critical: 0, warning: 1, info: 2 } as const;
const TONE = { critical: 'full', warning: 'b', info: undefined } as const;

export function Problems({ problems }: { problems: Problem[] }) {
  const severityOf = ({ severity }: Problem) => severity ?? 'warning';
  const sorted = [...problems].sort((a, b) => RANK[severityOf(a)] - RANK[severityOf(b)]);
  return (
    <section class="card" aria-label="Problems">
      {sorted.map((problem) => (
        <div key={problem.code + problem.message} class={`problem ${severityOf(problem)}`}>
          <Icon name={severityOf(problem) === 'info' ? 'info' : 'warning'} />
          <div class="stack tight">
            <p>{problem.message}</p>
            <span class="line small">
              <Badge tone={TONE[severityOf(problem)]}>{severityOf(problem)}</Badge>
              <code>{problem.code}</code>
              {problem.since && (
                <span class="soft">
                  since <Time at={problem.since} />
                </span>
              )}
            </span>
            <Help problem={problem} />
          </div>
        </div>
      ))}
    </section>
  );
}

/**
 * What to do. The console has the texts itself, so they are there without a way to the
 * documentation.
 */
function Help({ problem: { code, help } }: { problem: Problem }) {
  const text = HELP[code];
  if (!text) {
    return help ? (
      <p class="small soft">
        What to do: <code>{help}</code> in the documentation.
      </p>
    ) : null;
  }
  return (
    <div class="help small">
      <h3>What to do</h3>
      <Blocks of={text.cure} />
      <details>
        <summary>Why this appears</summary>
        <div class="stack tight">
          <Blocks of={text.cause} />
          <p class="soft">
            From <code>{help ?? `docs/OPERATIONS.md#${code}`}</code>
          </p>
        </div>
      </details>
    </div>
  );
}

function Blocks({ of }: { of: string[] }) {
  return (
    <>
      {of.map((block) => (
        <p key={block} class={block.startsWith('- ') ? 'item' : ''}>
          <Literals text={block.replace(/^- /, '')} />
        </p>
      ))}
    </>
  );
}

const literal = (text: string, key: number) => (
  <code key={key}>
    <Words text={text} />
  </code>
);

/** A text in which words between backticks, such as commands, are literal. */
function Literals({ text }: { text: string }) {
  return <>{text.split('`').map((part, index) => (index % 2 === 1 ? literal(part, index) : part))}</>;
}
