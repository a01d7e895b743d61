//! Rules of docs/DURABILITY.md that are no syncs, and that a build for mutation tests can break.
//! The simulator must notice that. All other builds keep them.

/// A rule that can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// D3: recovery verifies references that nothing names as durable.
    References,
}

#[cfg(feature = "mutations")]
mod broken {
    use super::Rule;
    use std::sync::atomic::{AtomicU8, Ordering};

    /// The position of the rule in [`Rule::ALL`]; other numbers stand for none.
    static BROKEN: AtomicU8 = AtomicU8::new(u8::MAX);

    impl Rule {
        /// All rules.
        pub const ALL: [Rule; 1] = [Rule::References];

        /// The name of the rule.
        pub fn name(self) -> &'static str {
            match self {
                Rule::References => "D3-references",
            }
        }

        /// Lets all pools of this process break a rule, or none any more.
        pub fn break_in_all_pools(rule: Option<Rule>) {
            let index = Rule::ALL.into_iter().position(|one| Some(one) == rule);
            BROKEN.store(index.map_or(u8::MAX, |index| index as u8), Ordering::Relaxed);
        }

        /// Returns whether the rule is kept.
        pub(crate) fn is_kept(self) -> bool {
            let broken = BROKEN.load(Ordering::Relaxed);
            Rule::ALL.get(usize::from(broken)) != Some(&self)
        }
    }
}

#[cfg(not(feature = "mutations"))]
impl Rule {
    /// Returns whether the rule is kept.
    pub(crate) const fn is_kept(self) -> bool {
        true
    }
}
