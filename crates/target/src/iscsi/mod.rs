//! The iSCSI target (RFC 7143).

pub mod access;
