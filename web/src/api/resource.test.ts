import { afterEach, expect, test, vi } from 'vitest';
import { refresh, reload } from './resource';

afterEach(() => vi.unstubAllGlobals());

/** A server that answers when the test says so. */
function slowServer() {
  const answers: ((body: unknown) => void)[] = [];
  const fetch = vi.fn(
    () =>
      new Promise((resolve) => {
        answers.push((body) => resolve({ ok: true, status: 200, json: async () => body }));
      }),
  );
  vi.stubGlobal('fetch', fetch);
  return { fetch, answers };
}

test('components that show the same route share a request', async () => {
  const { fetch, answers } = slowServer();
  const both = Promise.all([refresh('/shared'), refresh('/shared')]);
  answers[0]?.([]);
  await both;
  expect(fetch).toHaveBeenCalledTimes(1);
});

test('a reading after a change does not share an answer from before it', async () => {
  const { fetch, answers } = slowServer();
  const poll = refresh('/changed');
  const [one, other] = [reload('/changed'), reload('/changed')];
  answers[0]?.(['old']);
  await poll;
  await vi.waitFor(() => expect(fetch).toHaveBeenCalledTimes(2));
  answers[1]?.(['new']);
  await Promise.all([one, other]);
  expect(fetch).toHaveBeenCalledTimes(2);
});
