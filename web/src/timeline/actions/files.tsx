/** Looks into the files of a moment, without mounting it. The moment stays fixed while the dialog is open. */

import { useEffect, useState } from 'preact/hooks';
import { apiPath, errorText, failure, get, post, query, remove, send } from '../../api/client';
import type { FileEntry, FileList, Partition, View } from '../../api/schema';
import { hindcast } from '../../lib/command';
import { asText, below, crumbs, modeText, shownName } from '../../lib/files';
import { bytes } from '../../lib/format';
import { toRfc3339 } from '../../lib/time';
import { Button, Empty, Failure, Skeleton, Time } from '../../parts/basics';
import { Dialog, DoneFooter, LabelledCommand } from '../../parts/dialog';
import { SelectField } from '../../parts/fields';
import type { TimelineState } from '../state';
import { MomentLine } from './moment-line';

/** Lease of the view, in seconds. A closed dialog ends it; a closed browser leaves it to its lease. */
const LEASE = 900;
const RENEW = 300_000;

/** Bytes of a file that the preview reads. */
const PREVIEW = 64 << 10;

/** A view for as long as the component lives. */
export function useView(volume: string, moment: number): { view: View | null; error: string | null } {
  const [view, setView] = useState<View | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    let over = false;
    let id: string | null = null;
    const end = () => id !== null && remove(apiPath`/views/${id}`).catch(() => undefined);
    const body = { moment: toRfc3339(moment), lease_seconds: LEASE, name: 'files in the console' };
    post<View>(apiPath`/volumes/${volume}/views`, body)
      .then((made) => {
        id = made.id;
        if (over) end();
        else setView(made);
      })
      .catch((reason) => setError(errorText(reason)));
    const renew = () => id !== null && send(apiPath`/views/${id}`, renewal).catch(() => undefined);
    const timer = setInterval(renew, RENEW);
    return () => {
      over = true;
      clearInterval(timer);
      end();
    };
  }, [volume, moment]);
  return { view, error };
}

const renewal = {
  method: 'PATCH',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({ lease_seconds: LEASE }),
};

export function FilesDialog({ state, moment }: { state: TimelineState; moment: number }) {
  const { view, error } = useView(state.volume, moment);
  return (
    <Dialog title="Files of this moment" wide>
      <MomentLine state={state} moment={moment} />
      {error && <Failure what="The moment could not be opened." error={error} />}
      {!view && !error && <Skeleton lines={5} />}
      {view && <Files view={view} address={`${state.volume}@${toRfc3339(moment)}`} />}
      <DoneFooter />
    </Dialog>
  );
}

function Files({ view, address }: { view: View; address: string }) {
  const [partitions, setPartitions] = useState<Partition[] | null>(null);
  const [chosen, setChosen] = useState<number | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    get<Partition[]>(apiPath`/views/${view.id}/partitions`)
      .then((found) => {
        setPartitions(found);
        setChosen(found.find(({ readable }) => readable)?.number ?? null);
      })
      .catch((reason) => setError(errorText(reason)));
  }, [view.id]);
  if (error) return <Failure what="The disk could not be read." error={error} />;
  if (!partitions) return <Skeleton lines={5} />;
  const readable = partitions.filter((partition) => partition.readable);
  if (chosen === null) return <Unreadable partitions={partitions} address={address} />;
  const several = readable.length > 1;
  return (
    <>
      {several && (
        <SelectField
          label="Partition"
          value={String(chosen)}
          onInput={(value) => setChosen(Number(value))}
          options={readable.map((partition) => [String(partition.number), partitionText(partition)] as const)}
        />
      )}
      <Directory key={chosen} view={view} partition={chosen} address={address} several={several} />
    </>
  );
}

function partitionText({ number, name, content, label, size }: Partition): string {
  const named = [name, label].filter(Boolean).join(', ');
  return `${number}: ${content ?? 'unknown'}${named && ` (${named})`}, ${bytes(size)}`;
}

function Unreadable({ partitions, address }: { partitions: Partition[]; address: string }) {
  return (
    <Empty title="No file system here can be read" command={hindcast('view', 'create', address)}>
      {partitions.map((partition) => (
        <span key={partition.number}>
          {partitionText(partition)}. {partition.problem}{' '}
        </span>
      ))}
      The command opens the moment for a machine that knows its file system.
    </Empty>
  );
}

interface DirectoryProps {
  view: View;
  partition: number;
  address: string;
  several: boolean;
}

function Directory({ view, partition, address, several }: DirectoryProps) {
  const [path, setPath] = useState('/');
  const [list, setList] = useState<FileList | null>(null);
  const [file, setFile] = useState<FileEntry | null>(null);
  const [error, setError] = useState<string | null>(null);
  const read = (after?: string) =>
    get<FileList>(apiPath`/views/${view.id}/files` + query({ path, partition, after }));
  useEffect(() => {
    let over = false;
    setList(null);
    setFile(null);
    setError(null);
    read()
      .then((found) => !over && setList(found))
      .catch((reason) => !over && setError(errorText(reason)));
    return () => {
      over = true;
    };
  }, [path]);
  const more = async () => {
    const page = await read(list?.next ?? undefined).catch((reason) => setError(errorText(reason)));
    if (page && list) setList({ ...page, entries: [...list.entries, ...page.entries] });
  };
  const shown = file ? below(path, file.name) : path;
  const option = several && `--partition=${partition}`;
  return (
    <div class="stack">
      <Crumbs path={path} onPath={setPath} />
      {error && <Failure what="The directory could not be read." error={error} />}
      {!list && !error && <Skeleton lines={5} />}
      {list && (
        <Entries
          list={list}
          chosen={file}
          onDirectory={(name) => setPath(below(path, name))}
          onFile={setFile}
        />
      )}
      {list?.next && <Button onClick={more}>Show more</Button>}
      {file && <Preview key={shown} view={view} partition={partition} path={shown} file={file} />}
      <LabelledCommand
        label="As a command"
        text={
          file
            ? hindcast('files', 'cp', `${address}:${shown}`, '.', option)
            : hindcast('files', 'ls', `${address}:${path}`, option)
        }
      />
    </div>
  );
}

function Crumbs({ path, onPath }: { path: string; onPath: (path: string) => void }) {
  const all = crumbs(path);
  return (
    <nav class="crumbs" aria-label="Directory">
      {all.map((crumb, index) => (
        <button
          key={crumb.path}
          type="button"
          class="jump"
          aria-current={index === all.length - 1 ? 'location' : undefined}
          onClick={() => onPath(crumb.path)}
        >
          {index === 0 ? 'Disk' : shownName(crumb.name)}
        </button>
      ))}
    </nav>
  );
}

interface EntriesProps {
  list: FileList;
  chosen: FileEntry | null;
  onDirectory: (name: string) => void;
  onFile: (file: FileEntry) => void;
}

function Entries({ list, chosen, onDirectory, onFile }: EntriesProps) {
  if (list.entries.length === 0) return <p class="soft">The directory is empty.</p>;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls the list
    <section class="ranges files" aria-label="Files" tabIndex={0}>
      <table aria-label="Files">
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col" class="number">
              Size
            </th>
            <th scope="col">Changed</th>
            <th scope="col" class="narrow-hide">
              Permissions
            </th>
          </tr>
        </thead>
        <tbody>
          {list.entries.map((entry) => (
            <tr key={entry.name} class={entry === chosen ? 'selected' : ''}>
              <td class="clip">
                <EntryName entry={entry} onDirectory={onDirectory} onFile={onFile} />
              </td>
              <td class="number">{entry.kind === 'file' ? bytes(entry.size) : '–'}</td>
              <td>{entry.modified ? <Time at={entry.modified} still /> : '–'}</td>
              <td class="narrow-hide mono">{modeText(entry.mode)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function EntryName({
  entry,
  onDirectory,
  onFile,
}: {
  entry: FileEntry;
  onDirectory: (name: string) => void;
  onFile: (file: FileEntry) => void;
}) {
  const name = shownName(entry.name);
  switch (entry.kind) {
    case 'directory':
      return (
        <button type="button" class="jump" onClick={() => onDirectory(entry.name)}>
          {name}/
        </button>
      );
    case 'file':
      return (
        <button type="button" class="jump" onClick={() => onFile(entry)}>
          {name}
        </button>
      );
    case 'symlink':
      return (
        <span>
          {name} <span class="soft">→ {shownName(entry.target ?? '')}</span>
        </span>
      );
    default:
      return <span class="soft">{name}</span>;
  }
}

interface PreviewProps {
  view: View;
  partition: number;
  path: string;
  file: FileEntry;
}

/** The beginning of a file, if it is text, and a link that saves it. */
function Preview({ view, partition, path, file }: PreviewProps) {
  const [text, setText] = useState<string | null | undefined>(undefined);
  const [error, setError] = useState<string | null>(null);
  const address = apiPath`/views/${view.id}/file`;
  const cut = file.size > PREVIEW;
  useEffect(() => {
    const read = async () => {
      const response = await send(address + query({ path, partition, length: PREVIEW }), {});
      if (!response.ok) throw await failure(response);
      return new Uint8Array(await response.arrayBuffer());
    };
    read()
      .then((content) => setText(asText(content, cut)))
      .catch((reason) => setError(errorText(reason)));
  }, [address, path]);
  return (
    <div class="stack tight">
      <div class="line">
        <strong>{shownName(file.name)}</strong>
        <span class="soft small">{bytes(file.size)}</span>
        <a
          class="button push"
          href={`/api/v1${address}${query({ path, partition })}`}
          download={shownName(file.name)}
        >
          Download
        </a>
      </div>
      {error && <Failure what="The file could not be read." error={error} />}
      {text === undefined && !error && <Skeleton lines={3} />}
      {text === null && <p class="soft">This file is not text.</p>}
      {typeof text === 'string' && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the keyboard scrolls the text
        <section class="preview" tabIndex={0} aria-label={`Content of ${shownName(file.name)}`}>
          <pre>
            {text}
            {cut && '\n…'}
          </pre>
        </section>
      )}
    </div>
  );
}
