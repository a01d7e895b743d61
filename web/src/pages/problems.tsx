/** Problems that the server found, worst first, each with what to do. */

import type { Problem } from '../api/schema';
import { Badge, Time } from '../parts/basics';
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
          </div>
        </div>
      ))}
    </section>
  );
}
