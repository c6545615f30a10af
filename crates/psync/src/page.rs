//! The size of a memory page. The operating system maps and releases memory in whole pages.

/// The size of a page in bytes: 4096 on x86-64, up to 65,536 on some others; `None` if the system does not
/// tell.
pub fn page_size() -> Option<usize> {
    #[cfg(unix)]
    // SAFETY: asks for a number, and touches nothing.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok();
    #[cfg(not(unix))]
    let page = None;
    page.filter(|page| page.is_power_of_two())
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(all(unix, not(miri)))]
    fn pages_have_a_length() {
        assert!(super::page_size().is_some_and(|page| page >= 4096));
    }
}
