/** The files that differ between two moments. It reads both file systems, so a person asks for it. */

import { useRef, useState } from 'preact/hooks';
import { apiPath, errorText, get, query } from '../../api/client';
import type { FileEntry, FileList, View } from '../../api/schema';
import { compareFiles, type FileDifferences, shownName } from '../../lib/files';
import { bytes, plural } from '../../lib/format';
import { Button, Failure, Skeleton } from '../../parts/basics';
import { useView } from './files';

/** Directories that the console compares. The command compares all. */
const DIRECTORIES = 1000;

export function CompareFiles({ volume, from, to }: { volume: string; from: number; to: number }) {
  const [asked, setAsked] = useState(false);
  if (asked) return <Compared volume={volume} from={from} to={to} />;
  return <Button onClick={() => setAsked(true)}>Which files differ?</Button>;
}

async function directory(view: View, path: string): Promise<FileEntry[]> {
  const entries: FileEntry[] = [];
  let after: string | undefined;
  do {
    const page = await get<FileList>(apiPath`/views/${view.id}/files` + query({ path, after }));
    entries.push(...page.entries);
    after = page.next ?? undefined;
  } while (after !== undefined);
  return entries;
}

function Compared({ volume, from, to }: { volume: string; from: number; to: number }) {
  const [one, other] = [useView(volume, from), useView(volume, to)];
  const [result, setResult] = useState<FileDifferences | null>(null);
  const [error, setError] = useState<string | null>(null);
  const begun = useRef(false);
  if (one.view && other.view && !begun.current) {
    begun.current = true;
    const views = { from: one.view, to: other.view };
    compareFiles((side, path) => directory(views[side], path), DIRECTORIES)
      .then(setResult)
      .catch((reason) => setError(errorText(reason)));
  }
  const failed = error ?? one.error ?? other.error;
  if (failed) return <Failure what="The files could not be compared." error={failed} />;
  if (!result) return <Skeleton lines={3} />;
  return (
    <div class="stack tight">
      <p>
        <strong>{plural(result.found.length, 'file')}</strong> differ in kind, size, time, permissions or
        owner.
        {result.partial &&
          ` Only the first ${plural(result.directories, 'directory', 'directories')} were compared.`}
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls the list */}
      <section class="ranges" aria-label="Files that differ" tabIndex={0}>
        <table aria-label="Files that differ">
          <tbody>
            {result.found.map(({ path, change, entry }) => (
              <tr key={path}>
                <td>{change}</td>
                <td class="clip">{shownName(path)}</td>
                <td class="number">{entry.kind === 'file' ? bytes(entry.size) : '–'}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </div>
  );
}
