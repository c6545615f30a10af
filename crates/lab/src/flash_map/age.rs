//! How long a page has held what it holds, as a colour: from just written to not since the first update.
//!
//! Invariant: the older, the darker. Ages are counted in updates; each colour stands for twice the time of the one before, since most
//! pages are either written often or seldom.

use super::of_tree::grouped;

/// Colours, of the youngest first; the last one is for what was there before the first update.
pub(super) const COLOURS: [(u8, u8, u8); 7] = [
    (252, 222, 60),
    (250, 166, 53),
    (226, 100, 75),
    (184, 50, 118),
    (126, 30, 140),
    (72, 20, 120),
    (24, 30, 60),
];
/// Colours of pages that were written in the play.
const PARTS: u32 = COLOURS.len() as u32 - 1;

/// Which colour, for a page that was written at update `written` of `now`, of `all` in the play. 0 is before the first.
pub(super) fn class(written: u64, now: u64, all: u64) -> usize {
    let age = now.saturating_sub(written);
    let part = (0..PARTS).find(|part| written > 0 && age < end(*part, all));
    part.map_or(COLOURS.len() - 1, |part| part as usize)
}

/// Ages below this are of that part, or of one before.
fn end(part: u32, all: u64) -> u64 {
    (all >> (PARTS - 1 - part)).max(1)
}

/// The ages at which a colour ends, for all but the last.
pub(super) fn ends(all: u64) -> Vec<u64> {
    (0..PARTS).map(|part| end(part, all)).collect()
}

/// What the colours mean in a play of so many updates.
pub(super) fn names(all: u64) -> Vec<String> {
    let ends: Vec<_> = ends(all).into_iter().map(grouped).collect();
    let mut names = vec![format!("in the last {} updates", ends[0])];
    names.extend(ends.windows(2).map(|pair| format!("{} to {} updates ago", pair[0], pair[1])));
    names.push("before the first update".into());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_the_darker() {
        let classes: Vec<_> =
            [640, 621, 620, 600, 560, 480, 320, 1, 0].map(|written| class(written, 640, 640)).into();
        assert_eq!(classes, [0, 0, 1, 2, 3, 4, 5, 5, 6]);
        assert_eq!(class(100, 100, 640), 0, "in the midst of the play");
        let light = |colour: (u8, u8, u8)| u32::from(colour.0) + u32::from(colour.1) + u32::from(colour.2);
        assert!(COLOURS.windows(2).all(|pair| light(pair[0]) > light(pair[1])));
        let names = names(32_000);
        assert_eq!(names.len(), COLOURS.len());
        assert_eq!((&*names[0], &*names[1]), ("in the last 1,000 updates", "1,000 to 2,000 updates ago"));
        assert_eq!(names[5], "16,000 to 32,000 updates ago");
    }
}
