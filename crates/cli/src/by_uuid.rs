//! Volumes that the command line names by their UUIDs, `uuid:UUID` or `uuid:UUID@MOMENT`: the name
//! that the volume has now takes the place of its UUID. So every command that takes a volume takes
//! both.

use crate::failure::Failure;
use hindcast_api::{Client, ClientError, ErrorKind, split_uuid};
use std::ffi::{OsStr, OsString};

/// Returns the volume that an argument names by UUID, as (what stands before it, the UUID, what
/// follows it).
fn parts(arg: &OsStr) -> Option<(&str, &str, &str)> {
    let text = arg.to_str()?;
    let start = match text.starts_with("--") {
        true => text.find('=')? + 1,
        false => 0,
    };
    let (uuid, rest) = split_uuid(&text[start..])?;
    Some((&text[..start], uuid, rest))
}

/// Returns whether arguments name volumes by UUID.
pub(crate) fn is_in(args: &[OsString]) -> bool {
    args.iter().any(|arg| parts(arg).is_some())
}

/// Returns the arguments with the names of volumes in place of their UUIDs. A UUID that no volume
/// has stays, so that the request names what is missing.
pub(crate) fn named(client: &Client, args: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let name = |arg: OsString| {
        let Some((before, uuid, rest)) = parts(&arg) else { return Ok(arg) };
        match client.volume(&format!("uuid:{uuid}")) {
            Ok(volume) => Ok(format!("{before}{}{rest}", volume.name).into()),
            Err(ClientError::Api(body)) if body.kind == ErrorKind::NotFound => Ok(arg),
            Err(error) => Err(error.into()),
        }
    };
    args.into_iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_volumes_by_uuid() {
        let uuid = "6f1c2ab3-0000-4000-8000-00000000abcd";
        let of = |text: String| {
            let arg = OsString::from(text);
            parts(&arg).map(|(before, id, rest)| (before.to_owned(), id.to_owned(), rest.to_owned()))
        };
        let found = |before: &str, rest: &str| Some((before.into(), uuid.into(), rest.into()));
        assert_eq!(of(format!("uuid:{uuid}")), found("", ""));
        assert_eq!(of(format!("uuid:{uuid}@-90s")), found("", "@-90s"));
        assert_eq!(of(format!("--of=uuid:{uuid}")), found("--of=", ""));
        for other in ["db".to_owned(), "--of".to_owned(), format!("owner=uuid:{uuid}"), uuid.to_owned()] {
            assert_eq!(of(other.clone()), None, "{other}");
        }
    }
}
