//! Callers over the Unix socket. The kernel reports the user of the connected process.

use super::principal::Principal;
use hindcast_api::{ErrorBody, ErrorKind, PrincipalKind, Role};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;

/// The file with the names of local users.
const ACCOUNTS: &str = "/etc/passwd";
/// Maximum number of bytes of that file that the server reads.
const MAX_ACCOUNTS: u64 = 16 << 20;

/// Who may use the Unix socket, and with which role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketAccess {
    /// The group whose members can open the socket. `None`: only the server's own user and root.
    pub(crate) group: Option<u32>,
    /// The role of the members of the group.
    pub(crate) role: Role,
}

impl SocketAccess {
    /// Returns the caller for a process of user `uid`. `None`: the caller has no access.
    ///
    /// The permissions of the socket's file keep out users who are not members of the group, so a
    /// user who is connected is a member.
    pub(crate) fn caller(&self, uid: u32, accounts: &Accounts) -> Option<Principal> {
        let role = match uid == 0 || uid == rustix::process::geteuid().as_raw() {
            true => Role::Admin,
            false => self.group.map(|_| self.role)?,
        };
        Some(Principal::new(PrincipalKind::Local, accounts.name(uid), role))
    }

    /// Returns the permissions of the socket's file.
    pub(crate) fn mode(&self) -> u32 {
        if self.group.is_some() { 0o660 } else { 0o600 }
    }
}

/// The names of local users, by their numbers, as the server last read them. The thread that serves
/// the Unix socket looks a name up for each connection, so it must not wait for a disk.
#[derive(Default)]
pub(crate) struct Accounts(Mutex<BTreeMap<u32, String>>);

impl Accounts {
    /// Reads the names again. If the file can't be read, the old names stay.
    pub(crate) fn read(&self) {
        let mut text = Vec::new();
        let read = File::open(ACCOUNTS).and_then(|file| file.take(MAX_ACCOUNTS).read_to_end(&mut text));
        match read {
            Ok(_) => *self.0.lock() = names_in(&String::from_utf8_lossy(&text)),
            Err(error) => tracing::debug!(%error, "{ACCOUNTS} can't be read"),
        }
    }

    /// Returns the name of a user. A user that was not in the file has the name `uid:N`.
    pub(super) fn name(&self, uid: u32) -> String {
        self.0.lock().get(&uid).cloned().unwrap_or_else(|| format!("uid:{uid}"))
    }
}

/// Returns the names of users. The first name of a number counts.
fn names_in(accounts: &str) -> BTreeMap<u32, String> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    accounts.lines().rev().filter_map(user).collect()
}

/// Returns the number of a local group. `text` is its name in `/etc/group`, or its number.
pub(crate) fn group_number(text: &str) -> Result<u32, ErrorBody> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    number_in(&groups, text).ok_or_else(|| ErrorBody {
        kind: ErrorKind::Invalid,
        message: format!("--api-socket-group {text}: /etc/group has no such group; give its name or number"),
    })
}

fn number_in(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_is_admin_and_members_have_their_role() {
        let own = rustix::process::geteuid().as_raw();
        let alone = SocketAccess { group: None, role: Role::Operator };
        let shared = SocketAccess { group: Some(100), role: Role::Viewer };
        let accounts = Accounts::default();
        accounts.read();
        for access in [alone, shared] {
            let root = access.caller(0, &accounts).unwrap();
            assert_eq!((root.role, root.name.as_str()), (Role::Admin, "root"));
            assert_eq!(access.caller(own, &accounts).unwrap().role, Role::Admin);
        }
        assert_eq!(alone.caller(own + 12_345, &accounts), None);
        let member = shared.caller(4_000_000_001, &accounts).unwrap();
        assert_eq!((member.role, member.name.as_str()), (Role::Viewer, "uid:4000000001"));
        assert_eq!((alone.mode(), shared.mode()), (0o600, 0o660));
    }

    #[test]
    fn names_come_from_the_files_of_accounts() {
        let text =
            "root:x:0:0:root:/:/bin/sh\nanna:x:1001:1001::/:/bin/sh\ntwin:x:1001:1::/:/bin/sh\nbroken\n";
        let accounts = Accounts(Mutex::new(names_in(text)));
        assert_eq!(accounts.name(1001), "anna");
        assert_eq!(accounts.name(7), "uid:7");
        let groups = "root:x:0:\nstorage:x:2000:anna\nbroken\n";
        assert_eq!(number_in(groups, "storage"), Some(2000));
        assert_eq!(number_in(groups, "none"), None);
        assert_eq!(group_number("4711"), Ok(4711));
    }
}
