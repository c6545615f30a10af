//! How much address space this process may still take. A budget beyond that would end the process in the middle of
//! its work, since an allocation that fails is no error that could be returned.

/// Bytes of address space that are left, if there is a limit (`ulimit -v`) and the system tells.
pub(crate) fn left() -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let limit = limit_in(&std::fs::read_to_string("/proc/self/limits").ok()?)?;
    let taken = taken_in(&std::fs::read_to_string("/proc/self/status").ok()?).unwrap_or(0);
    Some(limit.saturating_sub(taken))
}

/// The soft limit, in bytes; `None` if it is "unlimited".
fn limit_in(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn taken_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_words_are_understood() {
        let limits = |soft: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max cpu time              unlimited            unlimited            seconds   \n\
                 Max address space         {soft}           unlimited            bytes     \n"
            )
        };
        assert_eq!(limit_in(&limits("4096000000")), Some(4_096_000_000));
        assert_eq!(limit_in(&limits("unlimited")), None);
        assert_eq!(limit_in(""), None);
        assert_eq!(
            taken_in("Name:\tsapwood\nVmPeak:\t    9000 kB\nVmSize:\t    8012 kB\n"),
            Some(8012 << 10)
        );
        assert_eq!(taken_in("VmSize: much"), None);
    }
}
