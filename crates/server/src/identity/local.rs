//! Callers over the Unix socket. The kernel reports the user of the connected process.

use super::principal::Principal;
use hindcast_api::{ErrorBody, ErrorKind, PrincipalKind, Role};
use std::fs;

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
    pub(crate) fn caller(&self, uid: u32) -> Option<Principal> {
        let role = match uid == 0 || uid == rustix::process::geteuid().as_raw() {
            true => Role::Admin,
            false => self.group.map(|_| self.role)?,
        };
        Some(Principal::new(PrincipalKind::Local, user_name(uid), role))
    }

    /// Returns the permissions of the socket's file.
    pub(crate) fn mode(&self) -> u32 {
        if self.group.is_some() { 0o660 } else { 0o600 }
    }
}

/// Returns the name of a local user. A user that `/etc/passwd` does not list has the name `uid:N`.
fn user_name(uid: u32) -> String {
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    named_in(&accounts, uid).unwrap_or_else(|| format!("uid:{uid}"))
}

fn named_in(accounts: &str, uid: u32) -> Option<String> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
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
        for access in [alone, shared] {
            assert_eq!(access.caller(0).unwrap().role, Role::Admin);
            assert_eq!(access.caller(own).unwrap().role, Role::Admin);
        }
        assert_eq!(alone.caller(own + 12_345), None);
        let member = shared.caller(4_000_000_001).unwrap();
        assert_eq!((member.role, member.name.as_str()), (Role::Viewer, "uid:4000000001"));
        assert_eq!((alone.mode(), shared.mode()), (0o600, 0o660));
    }

    #[test]
    fn names_come_from_the_files_of_accounts() {
        let accounts = "root:x:0:0:root:/:/bin/sh\nanna:x:1001:1001::/:/bin/sh\nbroken\n";
        assert_eq!(named_in(accounts, 1001).as_deref(), Some("anna"));
        assert_eq!(named_in(accounts, 7), None);
        let groups = "root:x:0:\nstorage:x:2000:anna\nbroken\n";
        assert_eq!(number_in(groups, "storage"), Some(2000));
        assert_eq!(number_in(groups, "none"), None);
        assert_eq!(group_number("4711"), Ok(4711));
    }
}
