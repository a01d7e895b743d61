//! `hindcast pool features` and `hindcast pool upgrade`: the formats of the pool that not every
//! build knows.

use crate::failure::Failure;
use crate::output::list;
use crate::session::Session;
use hindcast_api::{Feature, Upgrade};

pub(crate) const FEATURES_HELP: &str = "\
A feature is a format on disk that not every build knows. A build refuses a pool that has a feature \
which it does not know, and names it. The states:
  enabled        the pool has it
  available      hindcast pool upgrade enables it
  experimental   hindcast pool upgrade --enable NAME enables it
  internal       the pool sets it by itself when it needs it

Examples:
  hindcast pool features
  hindcast pool features -o json";

pub(crate) const UPGRADE_HELP: &str = "\
A new build opens pools of older builds, and does not use newer formats in them by itself, except \
for internal features. After an upgrade the pool may use them. Nothing that the pool holds is \
converted, and volumes stay in use meanwhile.

There is no way back: older builds refuse the pool. Before an upgrade, use the new build for as long \
as you may want to return to the old one. hindcast pool features lists what the pool has and what \
this build offers.

Experimental features are enabled only by their names. A later build may still change them.

Examples:
  hindcast pool upgrade --dry-run                  what would be enabled; changes nothing
  hindcast pool upgrade                            enable everything that is available
  hindcast pool upgrade --enable NAME              also an experimental feature";

/// Options of `hindcast pool upgrade`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also enable this experimental feature; may be given several times
    #[arg(long, value_name = "NAME")]
    enable: Vec<String>,

    /// Show what would be enabled, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn show(session: &Session) -> Result<(), Failure> {
    session.output.show(&session.client.features()?, |features| table(features))
}

pub(crate) fn upgrade(args: Args, session: &Session) -> Result<(), Failure> {
    let Args { enable, dry_run } = args;
    let features = session.client.upgrade(&Upgrade { enable, dry_run })?;
    session.output.show(&features, |features| outcome(features, dry_run))
}

fn outcome(features: &[Feature], dry_run: bool) -> String {
    if features.is_empty() {
        return "nothing to do: the pool has every feature that this upgrade enables; hindcast pool features lists \
                experimental ones"
            .to_owned();
    }
    let last = match dry_run {
        true => {
            "nothing was changed; an upgrade would enable these features, and older builds would refuse the pool"
        }
        false => "these features are enabled; older builds refuse the pool from now on",
    };
    format!("{}\n\n{last}", table(features))
}

fn table(features: &[Feature]) -> String {
    let row = |f: &Feature| vec![f.name.clone(), f.state.name().to_owned(), f.about.clone()];
    list(&["FEATURE", "STATE", "DESCRIPTION"], &[], features.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hindcast_api::FeatureState;

    #[test]
    fn what_an_upgrade_tells() {
        let feature = |state| Feature { name: "references".into(), about: "It is new.".into(), state };
        let planned = outcome(&[feature(FeatureState::Experimental)], true);
        assert!(planned.contains("references  experimental  It is new.\n\nnothing was changed"), "{planned}");
        let done = outcome(&[feature(FeatureState::Enabled)], false);
        assert!(done.contains("references  enabled  It is new.\n\nthese features are enabled"), "{done}");
        assert!(done.ends_with("older builds refuse the pool from now on"), "{done}");
        for dry_run in [true, false] {
            assert!(outcome(&[], dry_run).starts_with("nothing to do"));
        }
    }
}
