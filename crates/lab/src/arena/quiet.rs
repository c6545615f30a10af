//! Waits until the disk is quiet, so that its own counters can be believed: what they count beside the race would be the race's. Elsewhere only a
//! worker's own count is left, which takes whole folios of the page cache for what is written.
//!
//! Invariants:
//! 1. A disk that is quiet at first keeps nobody waiting. One that was not is to be so for some seconds together: a pause of those who use it is no end.
//! 2. It ends after [`PATIENCE`], whatever the disk does.

use super::meter::DeviceCounter;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::progress::tell;
use std::time::Duration;

/// More than this moved by others, in bytes a second, and the device's counters are not to be believed.
const QUIET: f64 = MIB;
const MIB: f64 = (1 << 20) as f64;

/// Looks that all are to find it quiet, when one did not.
const LULL: u32 = 3;

/// A look lasts as long.
pub(super) const LOOK: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Disk {
    Quiet,
    /// Others moved so many bytes a second, when they did so last.
    Busy(f64),
    /// It does not count.
    Mute,
}

impl Disk {
    /// Whether the device's counters are to be believed.
    pub fn counts(self) -> bool {
        self == Self::Quiet
    }

    /// What readers of the result have to know.
    pub fn note(self) -> Option<String> {
        let instead = "bytes are those that the worker's process counted, where Linux may count a whole folio of the page cache for each write";
        match self {
            Self::Quiet => None,
            Self::Busy(others) => Some(format!(
                "others moved {:.1} MiB/s on this disk at the beginning, and it was not quiet within {} s: {instead}",
                others / MIB,
                PATIENCE.as_secs()
            )),
            Self::Mute => Some(format!("this disk has no counters: {instead}")),
        }
    }
}

/// Looks at the disk that counts here, and waits if it is busy.
///
/// # Errors
/// [`Failure::Interrupted`].
pub(super) fn wait_for_quiet(counter: Option<&DeviceCounter>) -> Result<Disk> {
    let disk = wait(
        &mut || {
            if interrupt::pressed() {
                return Err(Failure::Interrupted);
            }
            Ok(counter.and_then(|counter| counter.others(LOOK)))
        },
        &mut |text| tell(text),
    )?;
    if let Disk::Busy(others) = disk {
        tell(format_args!(
            "warning: the disk was not quiet for long, others moved {:.1} MiB/s: the device's counters are not believed, and bytes are those that the worker's process counts",
            others / MIB
        ));
    }
    Ok(disk)
}

/// The same with `look`, which takes a look long, and says how many bytes a second others moved meanwhile.
fn wait(look: &mut dyn FnMut() -> Result<Option<f64>>, note: &mut dyn FnMut(&str)) -> Result<Disk> {
    let (mut quiet, mut needed, mut left, mut busy) = (0, 1, PATIENCE, 0.0);
    loop {
        let Some(others) = look()? else { return Ok(Disk::Mute) };
        (quiet, busy) = if others < QUIET { (quiet + 1, busy) } else { (0, others) };
        if quiet >= needed {
            return Ok(Disk::Quiet);
        }
        if left < LOOK {
            return Ok(Disk::Busy(busy));
        }
        if needed < LULL {
            let seconds = PATIENCE.as_secs();
            note(&format!(
                "others move {:.1} MiB/s on this disk: waiting until it is quiet, {seconds} s at most",
                others / MIB
            ));
        }
        (needed, left) = (LULL, left - LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of a disk on which others move so many MiB in each second, and then no end of the last; after how many looks, and what was told.
    fn found(moved: &[f64]) -> (Disk, usize, Vec<String>) {
        let (mut looks, mut told) = (0, Vec::new());
        let mut look = || {
            looks += 1;
            Ok(Some(moved[(looks - 1).min(moved.len() - 1)] * MIB))
        };
        let disk = wait(&mut look, &mut |text| told.push(text.to_owned())).unwrap();
        (disk, looks, told)
    }

    #[test]
    fn a_disk_that_is_quiet_keeps_nobody_waiting() {
        assert_eq!(found(&[0.9, 50.0]), (Disk::Quiet, 1, vec![]));
    }

    #[test]
    fn one_that_becomes_quiet_is_waited_for_and_a_pause_is_not_believed() {
        let (disk, looks, told) = found(&[20.0, 0.0, 0.0, 7.0, 0.1, 0.1, 0.1]);
        assert_eq!((disk, looks), (Disk::Quiet, 7));
        assert_eq!(told, ["others move 20.0 MiB/s on this disk: waiting until it is quiet, 30 s at most"]);
        assert!(disk.counts() && disk.note().is_none());
    }

    #[test]
    fn one_that_stays_busy_is_given_up_and_the_result_says_so() {
        for busy in [&[5.0][..], &[0.0, 5.0].repeat(40)[1..], &[5.0, 0.0, 0.0].repeat(20)] {
            let (disk, looks, told) = found(busy);
            assert_eq!(disk, Disk::Busy(5.0 * MIB));
            assert_eq!((looks as u64, told.len()), (1 + PATIENCE.as_secs(), 1));
            assert!(!disk.counts() && disk.note().unwrap().contains("not quiet within 30 s"));
        }
    }

    #[test]
    fn one_without_counters_is_not_waited_for() {
        let disk = wait(&mut || Ok(None), &mut |_| unreachable!("nothing to wait for")).unwrap();
        assert_eq!((disk, disk.counts()), (Disk::Mute, false));
        assert!(disk.note().unwrap().contains("no counters"));
    }

    #[test]
    fn ctrl_c_ends_the_waiting() {
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            if looks < 4 { Ok(Some(9.0 * MIB)) } else { Err(Failure::Interrupted) }
        };
        assert!(matches!(wait(&mut look, &mut |_| {}), Err(Failure::Interrupted)));
    }
}
