//! House rules of this repository, as tests over its tree: see `tests/`.
