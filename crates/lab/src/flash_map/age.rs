//! How long a page has held what it holds, as a colour: from just written to not since the first update.
//!
//! Invariant: the older, the darker; ages are counted in updates.

use super::of_tree::grouped;

/// Colours of equal parts of the play, the youngest first; the last one is for what was there before the first update.
pub(super) const COLOURS: [(u8, u8, u8); 7] = [
    (252, 222, 60),
    (250, 166, 53),
    (226, 100, 75),
    (184, 50, 118),
    (126, 30, 140),
    (72, 20, 120),
    (24, 30, 60),
];
const PARTS: u64 = COLOURS.len() as u64 - 1;

/// Which colour, for a page that was written at update `written` of `now`, of `all` in the play. 0 is before the first.
pub(super) fn class(written: u64, now: u64, all: u64) -> usize {
    if written == 0 {
        return COLOURS.len() - 1;
    }
    ((now.saturating_sub(written)) * PARTS / all.max(1)).min(PARTS - 1) as usize
}

/// What the colours mean in a play of so many updates.
pub(super) fn names(all: u64) -> Vec<String> {
    let updates = |part: u64| grouped(all * part / PARTS);
    let mut names = vec![format!("in the last {} updates", updates(1))];
    names.extend((1..PARTS).map(|part| format!("{} to {} updates ago", updates(part), updates(part + 1))));
    names.push("before the first update".into());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_the_darker() {
        let classes: Vec<_> = [600, 550, 499, 399, 299, 1, 0].map(|written| class(written, 600, 600)).into();
        assert_eq!(classes, [0, 0, 1, 2, 3, 5, 6]);
        assert_eq!(class(100, 100, 600), 0, "in the midst of the play");
        let light = |colour: (u8, u8, u8)| u32::from(colour.0) + u32::from(colour.1) + u32::from(colour.2);
        assert!(COLOURS.windows(2).all(|pair| light(pair[0]) > light(pair[1])));
        let names = names(6000);
        assert_eq!(names.len(), COLOURS.len());
        assert_eq!((&*names[0], &*names[1]), ("in the last 1,000 updates", "1,000 to 2,000 updates ago"));
    }
}
