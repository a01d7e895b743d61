//! Files in the content of a volume.
//!
//! The parsers of partition tables and file systems read bytes that a stranger may have written. So
//! they run in a child process, the reader ([`run`]). It has one file descriptor, a socket to the
//! server, and may read, write and allocate memory, nothing else ([`sandbox`]). The server sends it
//! requests, and answers its reads of the disk ([`Reading`]).
//!
//! Nothing is mounted, and nothing is written. The reader knows ext2, ext3, ext4 (with the journal
//! applied in memory), FAT and NTFS. It recognizes others by name.
#![forbid(unsafe_code)]

mod disk;
mod ext;
mod failure;
mod fat;
mod file_system;
mod ntfs_volume;
mod page;
mod partitions;
mod reader;
mod reading;
mod recognize;
pub mod sandbox;
mod wire;

pub use failure::{Failure, FailureKind};
pub use reader::{run, serve};
pub use reading::{Device, Reading};
pub use wire::{Place, Request};
