/**
 * What a page does only while a person sees it. Each open stream takes a connection, and a browser
 * has six of them for one host: without this, a few hidden tabs would keep the next one from
 * loading.
 */

/** Opens something now or when the page is shown, and closes it while the page is hidden. */
export function whileShown(open: () => () => void): () => void {
  let close: (() => void) | null = null;
  const end = () => {
    close?.();
    close = null;
  };
  const follow = () => {
    if (document.visibilityState === 'hidden') end();
    else close ??= open();
  };
  document.addEventListener('visibilitychange', follow);
  follow();
  return () => {
    document.removeEventListener('visibilitychange', follow);
    end();
  };
}
