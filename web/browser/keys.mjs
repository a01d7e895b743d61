// Uses a page as a person without a mouse does: with Tab, Enter and letters only.

import assert from 'node:assert/strict';

/** Presses of Tab after which an element counts as out of reach. */
const FARTHEST = 120;

const ROLES = { A: 'link', BUTTON: 'button', INPUT: 'field', SELECT: 'choice', TEXTAREA: 'field' };

/** The role and the name of what has the focus, as "button Open". The page itself is "page". */
function focused(page) {
  return page.evaluate((roles) => {
    const element = document.activeElement;
    if (element.tagName === 'MAIN') return 'page';
    const role = element.getAttribute('role') ?? roles[element.tagName] ?? element.tagName.toLowerCase();
    const label = element.labels?.[0]?.textContent ?? element.textContent;
    return `${role} ${element.getAttribute('aria-label') ?? label}`.trim();
  }, ROLES);
}

/** Fails unless the focus comes to `wanted` within a second. */
export async function assertFocus(page, wanted) {
  let now = await focused(page);
  for (let tries = 0; now !== wanted && tries < 20; tries += 1) {
    await page.waitForTimeout(50);
    now = await focused(page);
  }
  assert.equal(now, wanted);
}

/** Presses Tab, or Shift and Tab, until the focus is at `wanted`. Returns the number of presses. */
export async function tabTo(page, wanted, key = 'Tab') {
  const seen = [];
  for (let presses = 1; presses <= FARTHEST; presses += 1) {
    await page.keyboard.press(key);
    const now = await focused(page);
    if (now === wanted) return presses;
    seen.push(now);
  }
  return assert.fail(`${key} does not reach "${wanted}", but ${[...new Set(seen)].join(', ')}`);
}

/** Goes to an element by Tab, and presses Enter there. */
export async function press(page, wanted, key) {
  await tabTo(page, wanted, key);
  await page.keyboard.press('Enter');
}

/** Types over what a field has. */
export async function typeOver(page, text) {
  await page.keyboard.press('Control+A');
  await page.keyboard.type(text);
}
