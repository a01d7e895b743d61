import { describe, expect, test, vi } from 'vitest';

vi.stubGlobal('location', { hash: '', pathname: '/', search: '' });

const { mergeEvents } = await import('./events');
const { StreamParser } = await import('./stream');
const { linkOf } = await import('./session');

const event = (id: number) => ({
  id,
  time: '',
  kind: 'k',
  severity: 'info' as const,
  subject: null,
  message: String(id),
});

test('events are merged by id, newest first, up to a limit', () => {
  const merged = mergeEvents([event(3), event(1)], [event(2), event(3), event(4)], 3);
  expect(merged.map(({ id }) => id)).toEqual([4, 3, 2]);
});

describe('a stream', () => {
  test('is parsed across any cut', () => {
    const text = 'id: 7\nevent: change\ndata: {"a":\ndata: 1}\n\n: comment\n\nevent: gap\n\n';
    for (let cut = 0; cut <= text.length; cut += 1) {
      const parser = new StreamParser();
      const events = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];
      expect(events).toEqual([
        { event: 'change', data: '{"a":\n1}', id: '7' },
        { event: 'gap', data: '', id: null },
      ]);
    }
  });
});

test('only the fragment of a one-time link is a link', () => {
  expect(linkOf('#link=abc123')).toBe('abc123');
  expect(linkOf('#other')).toBeNull();
});
