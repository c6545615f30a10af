//! Chooses the backup and the archives with which a moment is restored.
//!
//! Invariants:
//! 1. Only what the manifests say counts; nothing is read here.
//! 2. The archives chosen continue the backup chosen, one behind the other, and cover the moment.
//! 3. A moment that several databases of the target have had is restored only of a backup that is said. Of one database that was set back, the
//!    newest backup before the moment counts.

use super::manifest::{ArchiveGap, ArchivePart, BackupManifest};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment to which a backup is restored. See [`Restore::to`](crate::backup::Restore::to).
///
/// ```
/// use sapwood::backup::Point;
/// use std::time::{Duration, SystemTime};
///
/// let an_hour_ago = Point::Time(SystemTime::now() - Duration::from_secs(3600));
/// let before_the_accident = Point::Sequence(1_000_000);
/// assert_ne!(an_hour_ago, before_the_accident);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Point {
    /// What was committed up to this time, by the database's clock, to the second: of the second after it some commits may be there.
    Time(SystemTime),
    /// What was committed up to this operation, and nothing after it. Of a commit of several operations all are there, or none. The operation with
    /// which the first backup ends is that backup, with what had happened to keyspaces by then.
    Sequence(u64),
}

impl Point {
    /// The time in milliseconds since 1970, or the operation.
    fn number(self) -> u64 {
        match self {
            Self::Time(time) => {
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
            }
            Self::Sequence(seq) => seq,
        }
    }

    /// Whether something that happened at a time, in milliseconds since 1970, comes after it. 0: it is not known when.
    pub(super) fn is_before_time(self, time: u64) -> bool {
        matches!(self, Self::Time(_)) && self.number() < time
    }

    /// Whether an operation comes after it.
    pub(super) fn is_before_operation(self, seq: u64) -> bool {
        matches!(self, Self::Sequence(point) if point < seq)
    }

    /// A backup's time, or its last operation.
    fn of(self, time: u64, seq: u64) -> u64 {
        match self {
            Self::Time(_) => time,
            Self::Sequence(_) => seq,
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(_) => write!(f, "{}", told_time(self.number())),
            Self::Sequence(seq) => write!(f, "operation {seq}"),
        }
    }
}

fn told_time(millis: u64) -> String {
    /// Milliseconds up to the year 10000: later times have no text in RFC 3339.
    const END: u64 = 253_402_300_800_000;
    if millis >= END {
        return format!("{millis} ms after 1970");
    }
    humantime::format_rfc3339_millis(time_of(millis)).to_string()
}

/// What is to be known of a manifest to choose, of very many: without segments, and without the archives that newer ones name as well, which
/// are `known`. The newest one comes first.
pub(super) fn slim(mut manifest: BackupManifest, known: &mut BTreeSet<u64>) -> BackupManifest {
    manifest.segments = Vec::new();
    if let Some(archive) = &mut manifest.archive {
        // By its own it goes on.
        archive.parts.retain(|part| known.insert(part.backup) || part.backup == manifest.number);
        archive.parts.shrink_to_fit();
    }
    manifest
}

/// What a moment is restored from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan<'m> {
    pub base: &'m BackupManifest,
    /// The one whose manifest names the archives: its keys are the newest that are needed.
    pub last: &'m BackupManifest,
    pub parts: Vec<ArchivePart>,
}

/// Why nothing is chosen.
#[derive(Debug)]
pub(super) struct NotChosen {
    /// What can be restored.
    pub existing: String,
    /// Whether there is more than one choice, and not none.
    pub is_ambiguous: bool,
}

/// Chooses among the backups of a target, which ascend. `base`: the backup to begin with, if that is said.
///
/// Each database of the target has a history of its own. Which one is meant is not guessed.
pub(super) fn choose(
    manifests: &[BackupManifest],
    point: Point,
    base: Option<u64>,
) -> Result<Plan<'_>, NotChosen> {
    let (mut gap, mut plans) = (None, Vec::new());
    let databases: BTreeSet<_> = manifests.iter().map(|it| it.database.0).collect();
    for database in databases {
        let history = History::of(manifests.iter().filter(|it| it.database.0 == database).collect());
        // What a backup has of its own moment may be more, or less: of events behind the same operation, or of commits at the same time.
        let found =
            [true, false].into_iter().find_map(|is_strict| history.plan((point, is_strict), base, &mut gap));
        plans.extend(found);
    }
    if plans.len() > 1 {
        let told: Vec<_> = plans
            .iter()
            .map(|plan| format!("{} (database {})", plan.base.number, plan.base.database))
            .collect();
        let told = told.join(", ");
        let existing = format!("that of several databases; say which by the number of its backup: {told}");
        return Err(NotChosen { existing, is_ambiguous: true });
    }
    plans.pop().ok_or_else(|| {
        let existing = match base.map(|number| (number, choose(manifests, point, None))) {
            Some((number, Ok(Plan { base, .. }))) => {
                format!("this moment from backup {}, not from {number}: leave that number out", base.number)
            }
            _ => ranges(manifests, gap),
        };
        NotChosen { existing, is_ambiguous: false }
    })
}

/// The backups of one database that have archives, ascending, and these by the backup that they continue.
struct History<'m> {
    backups: Vec<&'m BackupManifest>,
    parts: BTreeMap<u64, ArchivePart>,
}

impl<'m> History<'m> {
    fn of(mut backups: Vec<&'m BackupManifest>) -> Self {
        backups.retain(|it| it.archive.is_some());
        let mut parts = BTreeMap::new();
        for archive in backups.iter().rev().filter_map(|it| it.archive.as_ref()) {
            // Its manifest has those of the one before, and so on: mostly the newest has them all.
            let is_known = |part: &ArchivePart| parts.get(&part.after) == Some(part);
            if archive.parts.last().is_some_and(|part| !is_known(part)) {
                archive.parts.iter().for_each(|part| _ = parts.entry(part.after).or_insert(*part));
            }
        }
        Self { backups, parts }
    }

    /// The newest backup from which archives lead to the moment; if `is_strict`, with something before the moment, and something behind it.
    fn plan(
        &self,
        (point, is_strict): (Point, bool),
        base: Option<u64>,
        gap: &mut Option<ArchiveGap>,
    ) -> Option<Plan<'m>> {
        let wanted = point.number();
        // Whether everything up to a time, or an operation, is enough, and whether it is not too much.
        let is_enough = |time, seq| match point {
            Point::Time(_) if is_strict => wanted < time,
            _ => wanted <= point.of(time, seq),
        };
        let may_begin = |it: &BackupManifest| match point {
            Point::Sequence(_) if is_strict => it.seq < wanted,
            _ => point.of(it.time, it.seq) <= wanted,
        };
        let is_past = !self.backups.iter().any(|it| is_enough(it.time, it.seq));
        // From these nothing leads there: each is passed once, however many backups lead to it.
        let mut in_vain = BTreeSet::new();
        let may_be = |it: &&BackupManifest| may_begin(it) && base.is_none_or(|number| number == it.number);
        for base in self.backups.iter().rev().copied().filter(may_be) {
            let (mut chain, mut at) = (Vec::new(), base.number);
            let mut is_there = is_enough(base.time, base.seq);
            while !is_there
                && in_vain.insert(at)
                && let Some(part) = self.parts.get(&at)
            {
                chain.push(*part);
                is_there = is_enough(part.until, part.to);
                if !is_there && part.gap.is_some() {
                    *gap = part.gap.filter(|_| !is_past).or(*gap);
                    break;
                }
                at = part.backup;
            }
            let last = chain.last().map_or(base.number, |part| part.backup);
            if is_there && let Some(last) = self.backups.iter().find(|it| it.number >= last) {
                return Some(Plan { base, last, parts: chain });
            }
            let next = self.backups.iter().find(|it| it.number > at).and_then(|it| it.archive.as_ref());
            *gap = gap.or(next.and_then(|archive| archive.gap).filter(|_| !is_past));
        }
        None
    }
}

/// What can be restored, for people.
fn ranges(manifests: &[BackupManifest], gap: Option<ArchiveGap>) -> String {
    /// Ranges that an error lists (count): people look for the one near their moment.
    const LISTED: usize = 8;
    let archives = manifests.iter().filter_map(|it| it.archive.as_ref());
    let parts: BTreeMap<_, _> =
        archives.flat_map(|archive| &archive.parts).map(|part| (part.backup, part)).collect();
    let mut ranges: Vec<[(u64, u64); 2]> = Vec::new();
    // The backups that are there, and the range that each is in.
    let mut chains: BTreeMap<u64, usize> = BTreeMap::new();
    for manifest in manifests {
        if manifest.archive.is_none() {
            continue;
        }
        let own = (manifest.time, manifest.seq);
        // Back to a backup that is there: those between may have been removed.
        let (mut end, mut has_gap, mut at) = (own, false, manifest.number);
        let mut chain = None;
        while chain.is_none()
            && let Some(part) = parts.get(&at)
        {
            if part.gap.is_some() || at == manifest.number {
                end = (part.until, part.to);
            }
            has_gap |= part.gap.is_some();
            at = part.after;
            chain = chains.get(&at).copied();
        }
        if let Some(chain) = chain {
            ranges[chain][1] = end;
        }
        let chain = chain.filter(|_| !has_gap).unwrap_or_else(|| {
            ranges.push([own, own]);
            ranges.len() - 1
        });
        chains.insert(manifest.number, chain);
    }
    let mut lines: Vec<_> = ranges
        .iter()
        .rev()
        .take(LISTED)
        .map(|[(from, first), (to, last)]| {
            format!("{} to {} (operations {first} to {last})", told_time(*from), told_time(*to))
        })
        .collect();
    if lines.is_empty() {
        lines.push("no moment but those of backups: take them with an archive of the log".to_owned());
    }
    let told = lines.join("; ");
    gap.map_or(told.clone(), |gap| format!("{told}. Between these {gap}"))
}

/// Milliseconds since 1970 as a time.
pub(super) fn time_of(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::blob::Seal;
    use crate::backup::manifest::Archive;
    use crate::database_id::DatabaseId;

    /// Backups, one a word: number:time/operation, and what its archive has: <backup before>, or <backup before!time/operation> if that ends
    /// there; - if it has none; `n` if the log was not archived. Each manifest has the parts of those before.
    fn backups(text: &str) -> Vec<BackupManifest> {
        let pair = |text: &str| {
            let (time, seq) = text.split_once('/').unwrap();
            (time.parse::<u64>().unwrap(), seq.parse::<u64>().unwrap())
        };
        let mut all: Vec<BackupManifest> = Vec::new();
        let mut parts: Vec<ArchivePart> = Vec::new();
        for word in text.split_whitespace() {
            let (head, archive) = word.split_once(['<', '-', 'n']).unwrap();
            let (number, moment) = head.split_once(':').unwrap();
            let (number, (time, seq)) = (number.parse().unwrap(), pair(moment));
            if let Some(archive) = archive.strip_suffix('>') {
                let (after, end) =
                    archive.split_once('!').map_or((archive, None), |(a, b)| (a, Some(pair(b))));
                let after = after.parse().unwrap();
                let before = all.iter().find(|it| it.number == after).unwrap();
                let (until, to) = end.unwrap_or((time, seq));
                parts.push(ArchivePart {
                    after,
                    from: before.seq,
                    from_time: before.time,
                    to,
                    until,
                    gap: end.map(|_| ArchiveGap::Ingested),
                    backup: number,
                    seal: Seal::default(),
                });
            }
            let archive =
                (!word.ends_with('n')).then(|| Archive { parts: parts.clone(), ..Archive::default() });
            all.push(BackupManifest {
                database: DatabaseId([1; 16]),
                number,
                database_format: 14,
                span: 1 << 20,
                epoch: 1,
                seq,
                time,
                copied: 0,
                version: Seal::default(),
                log: Seal::default(),
                segments: Vec::new(),
                keys: None,
                archive,
            });
        }
        all
    }

    /// The backup that is restored, and the archives behind it.
    fn chosen(text: &str, point: Point) -> String {
        let all = slimmed(backups(text));
        match choose(&all, point, None) {
            Ok(plan) => {
                let parts: Vec<_> = plan.parts.iter().map(|part| format!(" +{}", part.backup)).collect();
                format!("{}{}", plan.base.number, parts.concat())
            }
            Err(_) => "none".to_owned(),
        }
    }

    /// As a restore has read them.
    fn slimmed(all: Vec<BackupManifest>) -> Vec<BackupManifest> {
        let mut known = BTreeSet::new();
        let mut slimmed: Vec<_> = all.into_iter().rev().map(|manifest| slim(manifest, &mut known)).collect();
        slimmed.reverse();
        slimmed
    }

    fn by_time(text: &str, times: &[u64]) -> String {
        let chosen: Vec<_> = times.iter().map(|time| chosen(text, Point::Time(time_of(*time)))).collect();
        chosen.join(", ")
    }

    fn by_sequence(text: &str, numbers: &[u64]) -> String {
        let chosen: Vec<_> = numbers.iter().map(|number| chosen(text, Point::Sequence(*number))).collect();
        chosen.join(", ")
    }

    #[test]
    fn a_moment_comes_from_the_last_backup_before_it_and_what_follows() {
        let three = "1:100/10- 2:200/20<1> 3:300/30<2>";
        assert_eq!(by_time(three, &[99, 100, 101, 199, 250, 299]), "none, 1 +2, 1 +2, 1 +2, 2 +3, 2 +3");
        // At the time of a backup more may have been committed; at the last one nothing is known of that.
        assert_eq!(by_time(three, &[200, 300, 301]), "2 +3, 3, none");
        assert_eq!(by_sequence(three, &[9, 10, 11, 20, 21, 30, 31]), "none, 1, 1 +2, 1 +2, 2 +3, 2 +3, none");
    }

    /// What a follower archives reaches to what is durable; what comes until the backup's time is in the next one.
    #[test]
    fn what_a_follower_has_archived_ends_before_its_time() {
        let mut three = backups("1:100/10- 2:200/20<1> 3:300/30<2> 4:400/40<3>");
        for manifest in &mut three {
            let parts = manifest.archive.iter_mut().flat_map(|archive| &mut archive.parts);
            parts.for_each(|part| part.until -= 50);
        }
        let chosen = |time| {
            let plan = choose(&three, Point::Time(time_of(time)), None).ok()?;
            Some((plan.base.number, plan.parts.len(), plan.last.number))
        };
        assert_eq!(
            [149, 160, 199, 249].map(chosen),
            [Some((1, 1, 2)), Some((1, 2, 3)), Some((1, 2, 3)), Some((2, 1, 3))]
        );
        assert_eq!([349, 351, 400].map(chosen), [Some((3, 1, 4)), None, Some((4, 0, 4))]);
        let told = choose(&three, Point::Time(time_of(399)), None).unwrap_err().existing;
        assert_eq!(told, "1970-01-01T00:00:00.100Z to 1970-01-01T00:00:00.350Z (operations 10 to 40)");
        assert_eq!((three[1].known_until(), three[0].known_until()), (150, 100));
        // What comes behind a gap begins with the backup.
        assert_eq!(backups("1:100/10- 2:200/20<1!150/14>")[1].known_until(), 200);
    }

    #[test]
    fn archives_stay_when_backups_between_are_removed() {
        let two: Vec<_> =
            backups("1:100/10- 2:200/20<1> 3:300/30<2>").into_iter().filter(|it| it.number != 2).collect();
        let plan = choose(&two, Point::Sequence(25), None).unwrap();
        assert_eq!((plan.base.number, plan.parts.len(), plan.last.number), (1, 2, 3));
    }

    #[test]
    fn a_gap_is_not_passed_over() {
        let gap = "1:100/10- 2:200/20<1!150/14> 3:300/30<2>";
        assert_eq!(by_time(gap, &[120, 149, 150, 151, 199, 201]), "1 +2, 1 +2, 1 +2, none, none, 2 +3");
        assert_eq!(by_sequence(gap, &[14, 15, 19, 20, 21]), "1 +2, none, none, 2, 2 +3");
        let not_kept = "1:100/10- 2:200/20- 3:300/30<2>";
        assert_eq!(by_sequence(not_kept, &[10, 15, 20, 25]), "1, none, 2, 2 +3");
        let without = "1:100/10n 2:200/20- 3:300/30n 4:400/40<2>";
        assert_eq!(by_sequence(without, &[10, 15, 20, 25, 35]), "none, none, 2, 2 +4, 2 +4");
    }

    #[test]
    fn the_backup_may_be_said_and_another_database_is_none_of_its() {
        let mut all = backups("1:100/10- 2:200/20<1> 3:300/30<2>");
        assert_eq!(choose(&all, Point::Sequence(25), Some(1)).unwrap().parts.len(), 2);
        assert!(choose(&all, Point::Sequence(25), Some(3)).is_err());
        all[2].database = DatabaseId([2; 16]);
        assert!(choose(&all, Point::Sequence(25), None).is_err());
    }

    #[test]
    fn a_backup_that_is_not_the_one_to_begin_with_is_said_to_be() {
        let all = backups("1:10/4- 2:20/6<1>");
        assert_eq!(choose(&all, Point::Sequence(5), Some(1)).map(|plan| plan.base.number).ok(), Some(1));
        let why = choose(&all, Point::Sequence(5), Some(2)).unwrap_err().existing;
        assert_eq!(why, "this moment from backup 1, not from 2: leave that number out");
        let why = choose(&all, Point::Sequence(9), Some(2)).unwrap_err().existing;
        assert!(why.contains("operations 4 to 6"), "{why}");
    }

    /// A restored database goes on under an id of its own, and backs up to the same target.
    #[test]
    fn which_database_is_meant_is_not_guessed() {
        let mut all = backups("1:100/10- 2:200/20<1> 3:150/12- 4:300/30<3>");
        for it in &mut all[2..] {
            it.database = DatabaseId([2; 16]);
        }
        let told = choose(&all, Point::Sequence(15), None).unwrap_err().existing;
        let both = format!("1 (database {}), 3 (database {})", all[0].database, all[2].database);
        assert!(told.contains(&both), "{told}");
        assert!(choose(&all, Point::Time(time_of(160)), None).is_err());
        for (point, base, last) in [(15, 1, 2), (15, 3, 4)] {
            let plan = choose(&all, Point::Sequence(point), Some(base)).unwrap();
            assert_eq!((plan.base.number, plan.last.number), (base, last));
        }
        let plan = choose(&all, Point::Sequence(25), None).unwrap();
        assert_eq!((plan.base.number, plan.last.number), (3, 4));
        assert_eq!(choose(&all, Point::Sequence(11), None).unwrap().base.number, 1);
    }

    /// It was set back to what it was at operation 12, and then went on: its newest backup before the moment is of what it is now.
    #[test]
    fn of_a_database_that_was_set_back_the_newest_history_counts() {
        let all = "1:100/10- 2:200/20<1> 3:300/12- 4:400/24<3>";
        assert_eq!(by_sequence(all, &[11, 12, 13, 15, 20, 24]), "1 +2, 1 +2, 3 +4, 3 +4, 3 +4, 3 +4");
    }

    #[test]
    fn a_moment_is_looked_for_among_very_many_backups() {
        let mut all = backups("1:100/10-");
        let first = all[0].clone();
        let mut parts = Vec::new();
        for number in 2..=9_000u64 {
            let (time, seq, before) = (number * 100, number * 10, all.last().unwrap());
            let gap = (number == 5_000).then_some(ArchiveGap::Ingested);
            let (to, until) = (seq - 5 * u64::from(gap.is_some()), time - 50 * u64::from(gap.is_some()));
            let (after, from, from_time) = (before.number, before.seq, before.time);
            parts.push(ArchivePart {
                after,
                from,
                from_time,
                to,
                until,
                gap,
                backup: number,
                seal: Seal::default(),
            });
            // As manifests are that were written after backups had been removed: of each only its own archives count here.
            let own =
                if number == 9_000 { std::mem::take(&mut parts) } else { parts[parts.len() - 1..].to_vec() };
            let archive = Some(Archive { parts: own, ..Archive::default() });
            all.push(BackupManifest { number, time, seq, archive, ..first.clone() });
        }
        assert!(choose(&all, Point::Sequence(49_997), None).unwrap_err().existing.contains("ingested"));
        assert_eq!(choose(&all, Point::Sequence(49_985), None).unwrap().base.number, 4_998);
    }

    /// Each manifest has the archives of those before: all of them together had the square of their number in memory.
    #[test]
    fn of_many_manifests_each_archive_is_known_once() {
        let later =
            (2..=300u64).map(|number| format!("{number}:{}/{}<{}>", number * 100, number * 10, number - 1));
        let text = format!("1:100/10- {}", later.collect::<Vec<_>>().join(" "));
        let all = backups(&text);
        let slim = slimmed(all.clone());
        let parts = |all: &[BackupManifest]| -> usize {
            all.iter().flat_map(|it| &it.archive).map(|archive| archive.parts.capacity()).sum()
        };
        assert!(parts(&all) >= 299 * 300 / 2 && parts(&slim) <= 2 * 300, "{}", parts(&slim));
        for seq in [9, 10, 15, 1_000, 1_499, 2_995, 3_000, 3_001] {
            let point = Point::Sequence(seq);
            let told = |all| match choose(all, point, None) {
                Ok(Plan { base, last, parts }) => Ok((base.number, last.number, parts)),
                Err(told) => Err(told.existing),
            };
            assert_eq!(told(&slim), told(&all), "{seq}");
        }
    }

    /// Each backup behind a removed one was told as a range of its own.
    #[test]
    fn an_error_tells_of_moments_behind_removed_backups() {
        let told = |text, removed: &[u64]| {
            let left: Vec<_> = backups(text).into_iter().filter(|it| !removed.contains(&it.number)).collect();
            choose(&slimmed(left), Point::Sequence(1_000), None).unwrap_err().existing
        };
        let four = "1:100/10- 2:200/20<1> 3:300/30<2> 4:400/40<3>";
        assert!(told(four, &[2, 3]).ends_with("(operations 10 to 40)"));
        assert!(told(four, &[1, 2]).ends_with("(operations 30 to 40)"));
        assert!(told(four, &[1, 2, 3]).ends_with("(operations 40 to 40)"));
        let gap = "1:100/10- 2:200/20<1!150/14> 3:300/30<2> 4:400/40<3>";
        assert_eq!(
            told(gap, &[2, 3]),
            "1970-01-01T00:00:00.400Z to 1970-01-01T00:00:00.400Z (operations 40 to 40); \
             1970-01-01T00:00:00.100Z to 1970-01-01T00:00:00.150Z (operations 10 to 14)"
        );
    }

    #[test]
    fn an_error_tells_what_there_is() {
        let told = |text| choose(&slimmed(backups(text)), Point::Sequence(1_000), None).unwrap_err().existing;
        assert_eq!(
            told("1:100/10- 2:200/20<1!150/14> 3:300/30<2> 4:400/40<3>"),
            "1970-01-01T00:00:00.200Z to 1970-01-01T00:00:00.400Z (operations 20 to 40); \
             1970-01-01T00:00:00.100Z to 1970-01-01T00:00:00.150Z (operations 10 to 14)"
        );
        assert!(told("1:100/10n").starts_with("no moment but those of backups"));
        let gap =
            choose(&backups("1:100/10- 2:200/20<1!150/14>"), Point::Sequence(17), None).unwrap_err().existing;
        assert!(gap.ends_with("Between these records were ingested, which are in no log"), "{gap}");
    }
}
