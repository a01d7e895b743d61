/** The moment that a dialog acts on, as the person and the server understand it. */

import { now } from '../../lib/clock';
import { localTime, relative, toRfc3339, zoneOffset } from '../../lib/time';
import { CheckField } from '../../parts/fields';
import { exactDigits } from '../axis';
import type { TimelineState } from '../state';

export function MomentLine({ state, moment }: { state: TimelineState; moment: number }) {
  return (
    <div class="moment-line">
      <strong>
        {localTime(moment, exactDigits(state.span.value))} {zoneOffset(moment)}
      </strong>
      <span class="soft small">
        {toRfc3339(moment)}, {relative(moment, now.value)}
      </span>
    </div>
  );
}

export function LastFlush({ checked, onInput }: { checked: boolean; onInput: (checked: boolean) => void }) {
  return (
    <CheckField
      label="Use the last flush at or before this moment: what clients had on stable storage"
      checked={checked}
      onInput={onInput}
    />
  );
}
