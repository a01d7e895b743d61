//! Compare and write: no request of any protocol comes between the two.
#![allow(clippy::unwrap_used)] // a test may panic

use hindcast_engine::device::{BlockDevice, MAX_COMPARED};
use hindcast_engine::disk::{Layer, LayeredDir, LowerDisk};
use hindcast_engine::pool::Pool;
use hindcast_engine::testing::{KIB, MIB, Site, content, write};
use hindcast_engine::{ErrorKind, Volume};
use std::io;
use std::sync::{Arc, Mutex};

const AT: u64 = 8 * KIB + 512;

type Then = Option<(u32, Box<dyn FnOnce() + Send>)>;

/// Runs an action right after a read of a physical volume.
#[derive(Default)]
struct Interrupting {
    /// The number of reads until the action, and the action.
    then: Mutex<Then>,
}

impl Layer for Interrupting {
    fn read_at(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<()> {
        disk.read_at(buf, offset)?;
        if !disk.name().starts_with("pv") {
            return Ok(());
        }
        let mut then = self.then.lock().unwrap();
        if let Some((reads, _)) = &mut *then {
            *reads -= 1;
        }
        let due = then.take_if(|(reads, _)| *reads == 0);
        drop(then);
        if let Some((_, run)) = due {
            run();
        }
        Ok(())
    }
    fn try_read_at(&self, disk: &LowerDisk, buf: &mut [u8], offset: u64) -> io::Result<bool> {
        self.read_at(disk, buf, offset).map(|()| true)
    }
}

/// Another request comes right behind each read of the comparison, when nothing has been written
/// yet.
#[test]
fn what_comes_behind_the_comparison_is_not_lost() {
    type Change = fn(&Arc<Pool>, &Volume);
    let changes: [(Change, u64); 6] = [
        (|_, v| write(v, 0, 2, 16 * KIB), 2),
        (|_, v| write(v, AT, 2, 512), 2),
        (|_, v| v.discard(0, 2 * MIB, false).unwrap(), 0),
        (|_, v| v.write_zeroes(AT, 512, false, false).unwrap(), 0),
        (
            |pool, _| {
                pool.resize_volume("v", 8 * KIB, true).unwrap();
                pool.resize_volume("v", 4 * MIB, false).unwrap();
            },
            0,
        ),
        // A write beside the range disturbs nothing.
        (|_, v| write(v, AT + 512, 2, 512), 3),
    ];
    for (n, (change, left)) in changes.into_iter().enumerate() {
        for reads in 1..=2 {
            let dir = Arc::new(Interrupting::default());
            let site =
                Site::builder(15).over(|files| Arc::new(LayeredDir::over(Arc::new(files), dir.clone())));
            let v = site.volume("v", 4 * MIB, 16 * KIB);
            let pool = site.pool;
            write(&v, 0, 1, 64 * KIB);
            pool.drain().unwrap();
            let (of_pool, of_v) = (pool.clone(), v.clone());
            *dir.then.lock().unwrap() = Some((reads, Box::new(move || change(&of_pool, &of_v))));
            let compared = v.compare_and_write(AT, &[1; 512], vec![3; 512].into(), false).unwrap();
            assert!(dir.then.lock().unwrap().is_none(), "{n}: nothing came in between");
            assert_eq!(compared, if left == 3 { Ok(()) } else { Err(0) }, "change {n} behind read {reads}");
            let mut block = [9; 512];
            v.read(AT, &mut block).unwrap();
            assert!(block.iter().all(|b| u64::from(*b) == left), "change {n} behind read {reads} was lost");
        }
    }
}

#[test]
fn it_tells_where_it_differs() {
    let site = Site::new(64);
    let v = site.volume("v", 4 * MIB, 16 * KIB);
    write(&v, 0, 1, MIB);
    for staged in [true, false] {
        let before = content(&v);
        let mut expected = before[4096..12288].to_vec();
        expected[5000] ^= 1;
        expected[7000] ^= 1;
        assert_eq!(v.compare_and_write(4096, &expected, vec![2; 8192].into(), false).unwrap(), Err(5000));
        assert!(content(&v) == before, "nothing was written");
        assert_eq!(
            v.compare_and_write(4096, &before[4096..12288], vec![2; 8192].into(), true).unwrap(),
            Ok(())
        );
        assert!(content(&v)[4096..12288].iter().all(|b| *b == 2), "{staged}");
        write(&v, 4096, 1, 8192);
        site.idle();
    }
    // The largest request, and refused ones.
    let most = vec![0; MAX_COMPARED as usize];
    assert_eq!(v.compare_and_write(2 * MIB, &most, vec![3; most.len()].into(), false).unwrap(), Ok(()));
    let kind = |expected: &[u8], new: usize, at: u64| {
        v.compare_and_write(at, expected, vec![3; new].into(), false).unwrap_err().kind()
    };
    let more = vec![0; MAX_COMPARED as usize + 512];
    assert_eq!(kind(&more, more.len(), 0), ErrorKind::Invalid);
    assert_eq!(kind(&most, 512, 0), ErrorKind::Invalid);
    assert_eq!(kind(&most, most.len(), 1), ErrorKind::Invalid);
    assert_eq!(kind(&most, most.len(), 4 * MIB - 512), ErrorKind::OutOfRange);
    site.pool.set_read_only("v", true).unwrap();
    assert_eq!(kind(&most, most.len(), 3 * MIB), ErrorKind::ReadOnly);
}

/// Compares content of a clone, content with a history, and discarded content.
#[test]
fn what_lies_below_is_compared_too() {
    let site = Site::new(64);
    let v = site.volume("v", 4 * MIB, 16 * KIB);
    write(&v, 0, 1, MIB);
    site.snap("v", "s");
    site.pool.clone_volume("v", "s", "c").unwrap();
    let c = site.pool.open_volume("c", false).unwrap();
    site.pool.set_cdp("c", Some(Default::default())).unwrap();
    assert_eq!(c.compare_and_write(512, &[1; 512], vec![2; 512].into(), false).unwrap(), Ok(()));
    c.discard(0, MIB, false).unwrap();
    assert_eq!(c.compare_and_write(512, &[1; 512], vec![2; 512].into(), false).unwrap(), Err(0));
    assert_eq!(c.compare_and_write(512, &[0; 512], vec![3; 512].into(), false).unwrap(), Ok(()));
    let all = content(&c);
    assert!(all[512..1024].iter().all(|b| *b == 3) && all[1024..MIB as usize].iter().all(|b| *b == 0));
    assert!(content(&v)[..MIB as usize].iter().all(|b| *b == 1));
}
