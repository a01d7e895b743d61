/** What runs in the background, with its progress. */

import { apiPath } from '../api/client';
import { useResource } from '../api/resource';
import type { Task } from '../api/schema';
import { may } from '../api/session';
import { hindcast } from '../lib/command';
import { byteRate, bytes, percent } from '../lib/format';
import { duration } from '../lib/time';
import { Badge, Button, Card, Empty, Failure, Meter, PageHead, Skeleton, Time } from '../parts/basics';
import { openDialog } from '../parts/dialog';
import { RemoveDialog } from '../parts/remove-dialog';
import { parameters, setParameters } from '../router';

const TONE = {
  running: 'a',
  waiting: undefined,
  done: undefined,
  failed: 'full',
  stopped: undefined,
} as const;

function amount({ total, done }: Task): string {
  return total ? `${bytes(done)} of ${bytes(total)}` : bytes(done);
}

function StopDialog({ task: { id, kind, subject } }: { task: Task }) {
  return (
    <RemoveDialog
      verb="Stop"
      object={`${kind} of ${subject}`}
      path={apiPath`/tasks/${id}`}
      changes={['/tasks']}
      command={hindcast('tasks', 'stop', id)}
      done={`${kind} of ${subject} was stopped.`}
    >
      <p>What is done stays done. The rest is left as it is, until the task begins again.</p>
    </RemoveDialog>
  );
}

export function TaskLine({ task }: { task: Task }) {
  const details = [
    amount(task),
    task.rate ? byteRate(task.rate) : null,
    task.seconds_left && task.state === 'running' ? `${duration(task.seconds_left * 1000)} left` : null,
  ];
  return (
    <li class="task">
      <div class="line">
        <strong>{task.kind}</strong>
        <span>{task.subject}</span>
        <Badge tone={TONE[task.state]}>{task.state}</Badge>
        {task.can_stop && may('operator') && (
          <span class="push">
            <Button
              kind="quiet"
              icon="close"
              label={`Stop ${task.kind} of ${task.subject}`}
              onClick={() => openDialog(<StopDialog task={task} />)}
            />
          </span>
        )}
      </div>
      {task.total && (
        <Meter
          part={task.done}
          whole={task.total}
          label={`${task.kind} of ${task.subject}: ${percent(task.done, task.total)} done`}
        />
      )}
      <span class="soft small">
        {details.filter(Boolean).join(', ')}
        {task.begun && (
          <>
            , began <Time at={task.begun} />
          </>
        )}
        {task.ended && (
          <>
            , ended <Time at={task.ended} />
          </>
        )}
        {task.error && <>. {task.error}</>}
      </span>
    </li>
  );
}

const STATES = [
  ['all', 'All'],
  ['running', 'Running'],
  ['waiting', 'Waiting'],
  ['ended', 'Ended'],
] as const;

/** A task that began again after it had ended is listed twice. */
export const taskKey = (task: Task) => `${task.id} ${task.ended ?? ''}`;

function isShown(task: Task, state: string): boolean {
  return state === 'all' || (state === 'ended' ? !!task.ended : task.state === state);
}

export function TasksPage() {
  const { data, error, reload: again } = useResource<Task[]>('/tasks', 2);
  const state = parameters.value.get('state') ?? 'all';
  const shown = data?.filter((task) => isShown(task, state));
  return (
    <>
      <PageHead title="Tasks">
        {STATES.map(([name, label]) => (
          <Button
            key={name}
            pressed={state === name}
            onClick={() => setParameters({ state: name === 'all' ? null : name })}
          >
            {label}
          </Button>
        ))}
      </PageHead>
      <Card>
        {error && !data && <Failure what="The tasks could not be read." error={error} retry={again} />}
        {!data && !error && <Skeleton />}
        {shown?.length === 0 && (
          <Empty title="No task" command="hindcast volume flatten VOLUME">
            A task appears here while the server copies, checks or moves data in the background.
          </Empty>
        )}
        <ul class="list">
          {shown?.map((task) => (
            <TaskLine key={taskKey(task)} task={task} />
          ))}
        </ul>
      </Card>
    </>
  );
}
