import { expect, test } from 'vitest';
import { ruleKeys } from './rules';

test('a rule keeps its name when the rules change their order', () => {
  const before = ruleKeys(['a', 'b', 'a', 'c']);
  const after = ruleKeys(['b', 'a', 'a', 'c']);
  expect(new Set(before).size).toBe(4);
  expect(after[0]).toBe(before[1]);
  expect(after[3]).toBe(before[3]);
});
