/** An answer of the mock that refuses a request. */
export class Refusal extends Error {
  constructor(status, kind, message) {
    super(message);
    Object.assign(this, { status, kind });
  }
}
