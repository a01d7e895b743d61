//! Rot in the blocks that a parity is computed from.

use super::{pattern, raid, raid_of, sync, without, written};
use crate::codec::crc32c;
use crate::disk::layout::raid5::BlockSums;
use crate::disk::layout::raid5::rows::BLOCK;
use crate::disk::layout::spans::UNIT;
use crate::disk::{Dir, OpenMode, Raid5, Settled};

#[test]
fn a_rotten_block_does_not_become_what_its_parity_says() {
    let (place, disk, content) = written();
    let raid = raid(&*disk);
    lend_sums(raid, content.clone());
    let stored = raid.place(0, 1);
    let member = place.memory.open(&stored.member.to_string(), OpenMode::Existing).unwrap();
    member.write_at(&[0xEE; 9], stored.offset).unwrap();
    // The other column of the line is written, and the rotten one is read for the parity.
    disk.write_at(&[7; BLOCK], 0).unwrap();
    sync(&*disk);
    assert_eq!(raid.take_suspects(), [0]);
    let at = raid.rows.block(0, 1) as usize * BLOCK;
    let right = &content[at..at + BLOCK];
    let mut buf = vec![0; BLOCK];
    assert_eq!(disk.settle(&mut buf, at as u64, &|block| block == right).unwrap(), Settled::Mended);
}

/// A read of several blocks fails because of one of them. The others are then read one by one, and
/// are verified as well.
#[test]
fn a_rotten_block_beside_an_unreadable_one_is_verified() {
    let (place, disk, content) = written();
    let raid = raid(&*disk);
    lend_sums(raid, content.clone());
    let [rotten, unreadable] = [0, 1].map(|line| raid.place(line, 1));
    assert_eq!((rotten.member, rotten.offset + BLOCK as u64), (unreadable.member, unreadable.offset));
    let name = rotten.member.to_string();
    place.memory.open(&name, OpenMode::Existing).unwrap().write_at(&[0xEE; 9], rotten.offset).unwrap();
    place.broken.make_unreadable(&name, unreadable.offset + 5);
    for line in [0, 1] {
        disk.write_at(&[7; BLOCK], raid.rows.block(line, 0) * BLOCK as u64).unwrap();
    }
    sync(&*disk);
    assert_eq!(raid.take_suspects(), [0]);
    place.broken.heal();
    let at = raid.rows.block(0, 1) as usize * BLOCK;
    let right = &content[at..at + BLOCK];
    let settled = disk.settle(&mut vec![0; BLOCK], at as u64, &|block| block == right);
    assert_eq!(settled.unwrap(), Settled::Mended);
}

/// Lets a RAID-5 know the sums of its content.
fn lend_sums(raid: &Raid5, content: Vec<u8>) {
    let known = move |at| Some(crc32c(&content[at as usize..at as usize + BLOCK]));
    raid.verify_with(BlockSums { known: Box::new(known), sum_of: crc32c });
}

/// The old content of a block in a wide row is a source of the new parity. If it is rotten, the
/// other blocks are the source.
#[test]
fn rot_in_what_is_replaced_does_not_become_rot_of_other_blocks() {
    let place = raid_of(&[9, 9, 9, 9, 9], 5);
    let disk = place.open();
    let raid = raid(&*disk);
    let mut content = pattern(8 * UNIT, 5);
    disk.write_at(&content, 0).unwrap();
    sync(&*disk);
    lend_sums(raid, content.clone());
    let line: Vec<usize> = (0..4).map(|column| raid.rows.block(0, column) as usize * BLOCK).collect();
    let stored = raid.place(0, 1);
    let member = place.memory.open(&stored.member.to_string(), OpenMode::Existing).unwrap();
    member.write_at(&[0xEE; 9], stored.offset).unwrap();
    // The second write replaces the same content as the first one.
    for byte in [6, 7] {
        disk.write_at(&[byte; BLOCK], line[1] as u64).unwrap();
        content[line[1]..line[1] + BLOCK].fill(byte);
    }
    sync(&*disk);
    drop(disk);
    for member in ["0", "1", "2", "3", "4"] {
        assert!(without(&place, member)[..content.len()] == content, "without {member}");
    }
}
