//! `sim`: runs the simulator.
fn main() {}
