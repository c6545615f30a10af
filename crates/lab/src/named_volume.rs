//! A part of a volume whose files have a prefix before their names, so that several trees of one kind live on one device, each
//! with names of its own.
//!
//! Invariant: files of other parts are neither seen nor touched.

use psync::{Access, Entry, FileId, PassThrough, Result, Volume};
use std::sync::Arc;

/// See the module.
pub(crate) struct NamedVolume {
    volume: Arc<dyn Volume>,
    prefix: String,
}

impl NamedVolume {
    /// The part of `volume` that `prefix` names.
    pub fn new(volume: Arc<dyn Volume>, prefix: String) -> Self {
        Self { volume, prefix }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl PassThrough for NamedVolume {
    fn inner(&self) -> &dyn Volume {
        &*self.volume
    }

    fn open(&self, name: &str, access: Access) -> Result<FileId> {
        self.volume.open(&self.name(name), access)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.volume.remove(&self.name(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.volume.rename(&self.name(from), &self.name(to))
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let own = |entry: Entry| {
            let name = entry.name.strip_prefix(&self.prefix)?.to_owned();
            Some(Entry { name, ..entry })
        };
        Ok(self.volume.list()?.into_iter().filter_map(own).collect())
    }

    fn describe(&self) -> String {
        format!("{}, {}", self.volume.describe(), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::NamedVolume;
    use psync::{Access, Simulated, Volume};
    use std::sync::Arc;

    #[test]
    fn parts_do_not_see_each_other() {
        let whole: Arc<dyn Volume> = Arc::new(Simulated::new(1));
        let [one, two] = ["1-", "2-"].map(|prefix| NamedVolume::new(Arc::clone(&whole), prefix.to_owned()));
        let access = Access { write: true, create_new: true, ..Access::default() };
        one.open("a", access).unwrap();
        two.open("a", access).unwrap();
        assert!(one.open("a", access).is_err());
        one.rename("a", "b").unwrap();
        let names = |volume: &dyn Volume| -> Vec<String> {
            volume.list().unwrap().into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!((names(&one), names(&two)), (vec!["b".to_owned()], vec!["a".to_owned()]));
        one.remove("b").unwrap();
        assert_eq!(names(&*whole), ["2-a"]);
    }
}
