//! The memory limit around a worker: a control group of its own with a hard limit, page cache included, without swap.
//!
//! Works with cgroup v1 (the memory controller) and v2 (memory.max). Where neither can be had, [`Fence::none`] says why, and
//! the race says so in its results: stores that use the page cache then have all of the machine's.
//!
//! Invariants:
//! 1. a worker is admitted before it gets its first order, so everything it does is inside;
//! 2. a fence that is dropped leaves no group behind.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Fence {
    group: Option<(Version, PathBuf)>,
    /// Of v2: memory.peak, open. What is written to it is forgotten for those alone who read through the same opening.
    peak: Option<File>,
    /// The kernel would not forget the peak: then it is of earlier workloads too, and no figure.
    keeps_peak: AtomicBool,
    limit: u64,
    about: String,
}

/// A place where a group could be made.
type Place = (Version, PathBuf);

impl Fence {
    /// A new group whose processes have `limit` bytes together; or none, which says why.
    pub fn new(limit: u64) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let places = places(&read("/proc/self/mounts"), &read("/proc/self/cgroup"));
        let mut refusals = Vec::new();
        for place in &places {
            match make(place, limit) {
                Ok(group) => {
                    let about = format!("cgroup {}, {} bytes, page cache included", name(place.0), limit);
                    let peak = File::options().read(true).write(true).open(group.join("memory.peak")).ok();
                    let keeps_peak = AtomicBool::new(false);
                    return Self { group: Some((place.0, group)), peak, keeps_peak, limit, about };
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
        let why = if places.is_empty() {
            "no memory control group is mounted".to_owned()
        } else {
            refusals.join("; ")
        };
        let (peak, keeps_peak) = (None, AtomicBool::new(false));
        Self { group: None, peak, keeps_peak, limit, about: format!("NONE: {why}. {REMEDY}") }
    }

    /// What it is, or why there is none.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Whether there is a limit.
    pub fn holds(&self) -> bool {
        self.group.is_some()
    }

    /// Takes a process in.
    pub fn admit(&self, process: u32) -> std::io::Result<()> {
        match &self.group {
            Some((_, group)) => fs::write(group.join("cgroup.procs"), process.to_string()),
            None => Ok(()),
        }
    }

    /// Forgets the peak so far. Kernels before 6.12 cannot reset memory.peak: then there is none from here on.
    pub fn reset_peak(&self) {
        let Some((version, group)) = &self.group else { return };
        let done = match (version, &self.peak) {
            (Version::V1, _) => fs::write(group.join(V1_PEAK), "0").is_ok(),
            (Version::V2, Some(file)) => reset(file).is_ok(),
            (Version::V2, None) => false,
        };
        self.keeps_peak.store(!done, Relaxed);
    }

    /// The most memory, page cache included, since the last reset.
    pub fn peak(&self) -> Option<u64> {
        let (version, group) = self.group.as_ref()?;
        if self.keeps_peak.load(Relaxed) {
            return None;
        }
        let text = match version {
            Version::V1 => fs::read_to_string(group.join(V1_PEAK)).ok()?,
            Version::V2 => read_again(self.peak.as_ref()?).ok()?,
        };
        text.trim().parse().ok()
    }

    /// Memory that is not page cache, now.
    pub fn anonymous(&self) -> Option<u64> {
        let (version, group) = self.group.as_ref()?;
        let key = if *version == Version::V1 { "total_rss" } else { "anon" };
        field(&fs::read_to_string(group.join("memory.stat")).ok()?, key)
    }

    /// How many processes the kernel killed for want of memory.
    pub fn kills(&self) -> u64 {
        let Some((version, group)) = &self.group else { return 0 };
        let file = if *version == Version::V1 { "memory.oom_control" } else { "memory.events" };
        let text = fs::read_to_string(group.join(file)).unwrap_or_default();
        field(&text, "oom_kill").unwrap_or(0)
    }

    /// Gives back the page cache of processes that are gone, so that the next one begins cold.
    pub fn forget_pages(&self) {
        if let Some((version, group)) = &self.group {
            // Best effort: the files' pages are given up one by one as well.
            let _ = match version {
                Version::V1 => fs::write(group.join("memory.force_empty"), "0"),
                Version::V2 => fs::write(group.join("memory.reclaim"), self.limit.to_string()),
            };
        }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Some((_, group)) = &self.group {
            self.forget_pages();
            // The group of a process that was just killed stays busy for a moment.
            let begun = Instant::now();
            while fs::remove_dir(group).is_err() && group.exists() && begun.elapsed() < Duration::from_secs(5)
            {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

const V1_PEAK: &str = "memory.max_usage_in_bytes";

fn reset(mut file: &File) -> std::io::Result<()> {
    file.rewind()?;
    file.write_all(b"0")
}

/// All of a file, from its beginning, by the same opening.
fn read_again(mut file: &File) -> std::io::Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

const REMEDY: &str =
    "Run as root, or on Linux with systemd: systemd-run --user --scope -p Delegate=yes sapwood-lab arena …";

fn name(version: Version) -> &'static str {
    if version == Version::V1 { "v1" } else { "v2" }
}

fn make((version, parent): &Place, limit: u64) -> Result<PathBuf, String> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let group = parent.join(format!("sapwood-arena-{}-{number}", std::process::id()));
    if *version == Version::V2 {
        // Children have the controller only if the parent passes it on; it may do so already.
        let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
    }
    let at = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir(&group).map_err(|error| at(&group, error))?;
    let set = |file: &str, value: String| {
        let path = group.join(file);
        fs::write(&path, value).map_err(|error| at(&path, error))
    };
    let done = match version {
        Version::V1 => {
            // Where swap is not accounted for these files are not there.
            let _ = set("memory.swappiness", "0".into());
            set("memory.limit_in_bytes", limit.to_string()).map(|()| {
                let _ = set("memory.memsw.limit_in_bytes", limit.to_string());
            })
        }
        Version::V2 => set("memory.max", limit.to_string()).map(|()| {
            let _ = set("memory.swap.max", "0".into());
        }),
    };
    match done {
        Ok(()) => Ok(group),
        Err(refusal) => {
            let _ = fs::remove_dir(&group);
            Err(refusal)
        }
    }
}

/// Where groups could be made, best first: below our own group and, for v2, where a group that holds processes cannot pass
/// controllers on, below those above it.
fn places(mounts: &str, own: &str) -> Vec<Place> {
    let own_of = |wanted: &dyn Fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            wanted(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let mut places = Vec::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(point), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let point = Path::new(point);
        if kind == "cgroup" && options.split(',').any(|option| option == "memory") {
            let ours = own_of(&|controllers| controllers.split(',').any(|one| one == "memory"));
            let mut found = vec![(Version::V1, point.join(ours.unwrap_or_default()))];
            found.push((Version::V1, point.to_owned()));
            found.dedup();
            places.extend(found);
        } else if kind == "cgroup2" {
            let mut group = point.join(own_of(&str::is_empty).unwrap_or_default());
            while group.starts_with(point) {
                places.push((Version::V2, group.clone()));
                if !group.pop() {
                    break;
                }
            }
        }
    }
    // A mixed system has the controller in v1.
    places.sort_by_key(|place| place.0 == Version::V2);
    places
}

/// The number behind `key` in a file of keys and numbers.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(mounts: &str, own: &str) -> Vec<String> {
        let show = |place: Place| format!("{} {}", name(place.0), place.1.display());
        places(mounts, own).into_iter().map(show).collect()
    }

    #[test]
    fn groups_are_made_below_our_own() {
        let mixed = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                     cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                     cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0";
        let own = "4:cpu:/x\n3:memory:/jobs/7\n0::/";
        let v2_root = "v2 /sys/fs/cgroup/unified/";
        let expected =
            ["v1 /sys/fs/cgroup/memory/jobs/7", "v1 /sys/fs/cgroup/memory", v2_root.trim_end_matches('/')];
        let found: Vec<_> =
            shown(mixed, own).iter().map(|text| text.trim_end_matches('/').to_owned()).collect();
        assert_eq!(found, expected);
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0";
        let found = shown(unified, "0::/user.slice/me.scope");
        let expected =
            ["v2 /sys/fs/cgroup/user.slice/me.scope", "v2 /sys/fs/cgroup/user.slice", "v2 /sys/fs/cgroup"];
        assert_eq!(found, expected);
        assert_eq!(shown("tmpfs /tmp tmpfs rw 0 0", own), [""; 0]);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\nanon 4096\nanon_thp 1";
        assert_eq!(field(text, "oom_kill"), Some(3));
        assert_eq!(field(text, "anon"), Some(4096));
        assert_eq!(field(text, "file"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_fence_holds_or_says_why_not() {
        let fence = Fence::new(64 << 20);
        if !fence.holds() {
            assert!(fence.about().contains("NONE: ") && fence.about().contains("systemd-run"));
            println!("skipped: {}", fence.about());
            return;
        }
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read wait; x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo $x"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        fence.admit(child.id()).unwrap();
        drop(child.stdin.take());
        let status = child.wait().unwrap();
        assert!(!status.success() && fence.kills() > 0, "300 MB fitted into 64 MiB");
        assert!(fence.peak().unwrap() <= 64 << 20);
        let (_, group) = fence.group.clone().unwrap();
        assert!(group.exists());
        drop(fence);
        assert!(!group.exists());
    }
}
