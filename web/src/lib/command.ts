/** Builds the command line that does the same as a dialog. */

/** One argument as a POSIX shell takes it. */
export function quote(argument: string): string {
  return /^[\w@%+=:,./-]+$/.test(argument) ? argument : `'${argument.replaceAll("'", `'\\''`)}'`;
}

/** The `hindcast` command with these arguments. It leaves out false, null and undefined ones. */
export function hindcast(...words: (string | false | null | undefined)[]): string {
  return ['hindcast', ...words.filter((word): word is string => typeof word === 'string').map(quote)].join(
    ' ',
  );
}
