//! Targets over a real pool.
