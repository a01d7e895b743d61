/** What runs in the background, with progress, and what failed. */

import { apiPath, remove } from '../api/client';
import type { Task } from '../api/pending';
import { reload, useResource } from '../api/resource';
import { may } from '../api/session';
import { byteRate, bytes, count, percent } from '../lib/format';
import { duration } from '../lib/time';
import { Badge, Button, Card, Empty, Failure, Meter, PageHead, Skeleton, Time } from '../parts/basics';
import { attempt } from '../parts/notices';
import { parameters, setParameters } from '../router';

const TONE = { running: 'a', waiting: undefined, failed: 'b', done: undefined } as const;

function amount({ unit = 'bytes', total, done }: Task): string {
  if (unit === 'percent') return `${Math.round(done)} %`;
  const text = unit === 'bytes' ? bytes : count;
  return total === null ? text(done) : `${text(done)} of ${text(total)}`;
}

function stop(task: Task): Promise<void> {
  return attempt('Stopping the task', async () => {
    await remove(apiPath`/tasks/${task.id}`);
    await reload('/tasks');
  });
}

export function TaskLine({ task }: { task: Task }) {
  const total = task.unit === 'percent' ? 100 : task.total;
  const details = [
    amount(task),
    task.rate && (task.unit ?? 'bytes') === 'bytes' ? byteRate(task.rate) : null,
    task.seconds_left !== null && task.state === 'running'
      ? `${duration(task.seconds_left * 1000)} left`
      : null,
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
              onClick={() => stop(task)}
            />
          </span>
        )}
      </div>
      {total !== null && (
        <Meter
          part={task.done}
          whole={total}
          label={`${task.kind} of ${task.subject}: ${percent(task.done, total)} done`}
        />
      )}
      <span class="soft small">
        {details.filter(Boolean).join(', ')}
        {task.begun && (
          <>
            , began <Time at={task.begun} />
          </>
        )}
        {task.error && <>. {task.error}</>}
      </span>
    </li>
  );
}

const STATES = ['all', 'running', 'waiting', 'failed'] as const;

export function TasksPage() {
  const { data, error, reload: again } = useResource<Task[]>('/tasks', 2);
  const state = parameters.value.get('state') ?? 'all';
  const shown = data?.filter((task) => state === 'all' || task.state === state);
  return (
    <>
      <PageHead title="Tasks">
        {STATES.map((name) => (
          <Button
            key={name}
            pressed={state === name}
            onClick={() => setParameters({ state: name === 'all' ? null : name })}
          >
            {name}
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
            <TaskLine key={task.id} task={task} />
          ))}
        </ul>
      </Card>
    </>
  );
}
