/** Fields of forms, each with its label and hint. */

import type { ComponentChildren } from 'preact';
import { useId, useState } from 'preact/hooks';

interface TextProps {
  label: string;
  value: string;
  onInput: (value: string) => void;
  hint?: ComponentChildren;
  type?: 'text' | 'password' | 'number' | 'time';
  first?: boolean;
  required?: boolean;
  placeholder?: string;
  autocomplete?: string;
  problem?: string | null;
  /** Values to choose from. Others can be typed, too. */
  suggestions?: string[];
}

export function TextField(props: TextProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      <input
        id={id}
        // The library's types do not accept a choice of input types.
        type={(props.type ?? 'text') as 'text'}
        value={props.value}
        onInput={(event) => props.onInput(event.currentTarget.value)}
        required={props.required}
        placeholder={props.placeholder}
        autocomplete={props.autocomplete ?? 'off'}
        spellcheck={false}
        aria-invalid={Boolean(props.problem)}
        aria-describedby={props.hint || props.problem ? `${id}-hint` : undefined}
        data-first={props.first ? '' : undefined}
        list={props.suggestions && `${id}-list`}
      />
      {props.suggestions && (
        <datalist id={`${id}-list`}>
          {props.suggestions.map((value) => (
            <option key={value} value={value} />
          ))}
        </datalist>
      )}
      {(props.problem || props.hint) && (
        <span class={props.problem ? 'hint problem' : 'hint'} id={`${id}-hint`}>
          {props.problem ?? props.hint}
        </span>
      )}
    </div>
  );
}

interface SelectProps<T extends string> {
  label: string;
  value: T;
  onInput: (value: T) => void;
  options: readonly (readonly [T, string])[];
  hint?: ComponentChildren;
}

export function SelectField<T extends string>({ label, value, onInput, options, hint }: SelectProps<T>) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} onInput={(event) => onInput(event.currentTarget.value as T)}>
        {options.map(([option, name]) => (
          <option key={option} value={option}>
            {name}
          </option>
        ))}
      </select>
      {hint && <span class="hint">{hint}</span>}
    </div>
  );
}

interface CheckProps {
  label: ComponentChildren;
  checked: boolean;
  onInput: (checked: boolean) => void;
}

export function CheckField({ label, checked, onInput }: CheckProps) {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} onInput={(event) => onInput(event.currentTarget.checked)} />
      <span>{label}</span>
    </label>
  );
}

interface SearchProps {
  label: string;
  value: string;
  onInput: (value: string) => void;
}

export function SearchField({ label, value, onInput }: SearchProps) {
  return (
    <input
      class="search"
      type="search"
      aria-label={label}
      placeholder={label}
      value={value}
      onInput={(event) => onInput(event.currentTarget.value)}
    />
  );
}

/** The place of a rule that a person typed. Undefined: the last one. Null: it is no place. */
export function placeOf(text: string): number | null | undefined {
  if (text.trim() === '') return undefined;
  return /^[1-9]\d{0,4}$/.test(text.trim()) ? Number(text) : null;
}

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;

/** Characters that the name of a volume, snapshot, mark, group or schedule can have. */
const LONGEST_NAME = 128;

/** Why a name is refused, or null. An empty name is not refused yet. */
export function nameProblem(name: string, longest = LONGEST_NAME): string | null {
  if (name === '' || (NAME.test(name) && name.length <= longest)) return null;
  return `Use 1 to ${longest} letters, digits, dots, dashes and underscores. The first one is a letter or a digit.`;
}

/**
 * The state of a field for a name: the name, whether it can be sent, and the field's properties.
 */
export function useName(initial = '', longest = LONGEST_NAME) {
  const [name, setName] = useState(initial);
  const problem = nameProblem(name, longest);
  return {
    name,
    valid: name !== '' && problem === null,
    field: { value: name, onInput: setName, problem, first: true },
  };
}
