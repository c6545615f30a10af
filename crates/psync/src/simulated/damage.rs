//! Damage that a test does to files behind the store's back: silent corruption, and devices that lie.
//!
//! Invariant: a helper that changes a file or a name makes it durable as it is then seen, so that
//! [`Simulated::power_loss`] never undoes the damage. Helpers are not operations: no plan counts them, and they
//! work when the power is off.

use super::content::Content;
use super::directory::NameChange;
use super::faults::{Action, Filter, OperationKind};
use super::node::Node;
use super::{Simulated, check_name};
use crate::{Error, Result};
use std::sync::Arc;

impl Simulated {
    /// Flips bit `bit` (0 to 7) of byte `byte` of the file.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] if there is no such byte or bit.
    pub fn flip_bit(&self, name: &str, byte: u64, bit: u32) -> Result<()> {
        let mut state = self.state.lock();
        let number = state.named(name)?;
        let len = state.node(number).map_or(0, |node| node.seen.len());
        if byte >= len || bit > 7 {
            return Err(Error::Invalid(format!(
                "no bit {bit} of byte {byte} in {name}, which has {len} bytes"
            )));
        }
        state.edit(number, |node| {
            let content = Arc::make_mut(&mut node.seen);
            let mut one = [0];
            content.read(byte, &mut one);
            content.write(byte, &[one[0] ^ (1 << bit)]);
            node.make_durable();
        });
        Ok(())
    }

    /// Cuts the file to `len` bytes, or extends it with zeros.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn truncate_file(&self, name: &str, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        let number = state.named(name)?;
        state.edit(number, |node| {
            Arc::make_mut(&mut node.seen).resize(len);
            node.make_durable();
        });
        Ok(())
    }

    /// Returns the whole content of the file, as a read would see it now. Not suitable for files of the size of
    /// memory or more.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let number = state.named(name)?;
        let Some(node) = state.node(number) else { return Err(Error::NotFound { file: name.to_owned() }) };
        let mut bytes = vec![0; node.seen.len() as usize];
        node.seen.read(0, &mut bytes);
        Ok(bytes)
    }

    /// Sets the content of the file, and creates it if necessary. Open handles see the new content. Makes the
    /// directory durable.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut content = Content::default();
        content.write(0, bytes);
        self.put(name, Arc::new(content))
    }

    fn put(&self, name: &str, content: Arc<Content>) -> Result<()> {
        check_name(name)?;
        let mut state = self.state.lock();
        if let Ok(number) = state.named(name) {
            state.edit(number, |node| *node = Node::durable(content));
        } else {
            let file = state.add_node(Node::durable(content));
            state.directory.change(NameChange::Create { name: name.to_owned(), file });
        }
        state.sync_directory();
        Ok(())
    }

    /// Removes the file, and makes the directory durable. Open handles keep the file.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn remove_file(&self, name: &str) -> Result<()> {
        let mut state = self.state.lock();
        state.remove(name)?;
        state.sync_directory();
        Ok(())
    }

    /// Renames the file, replacing a file of that name, and makes the directory durable.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] for an invalid name.
    pub fn rename_file(&self, from: &str, to: &str) -> Result<()> {
        check_name(to)?;
        let mut state = self.state.lock();
        state.rename(from, to)?;
        state.sync_directory();
        Ok(())
    }

    /// Copies the current content of `from` to `to`, and creates `to` if necessary. Makes the directory
    /// durable.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] for an invalid name.
    pub fn copy_file(&self, from: &str, to: &str) -> Result<()> {
        let content = {
            let state = self.state.lock();
            let number = state.named(from)?;
            state.node(number).map(|node| Arc::clone(&node.seen)).unwrap_or_default()
        };
        self.put(to, content)
    }

    /// Plans a lie: the `nth` write (from 1) that `filter` matches is acknowledged, but lands `by` bytes away
    /// from its offset, in the same file. The filter's kinds do not matter: only writes are counted.
    pub fn misdirect_nth_write(&self, filter: impl Into<Filter>, nth: u64, by: i64) {
        let mut state = self.state.lock();
        state.plans.add_lie(filter.into(), nth, Action::Misdirect(by), OperationKind::Write);
    }

    /// Plans a lie: the `nth` write (from 1) that `filter` matches is acknowledged, but never happens (though
    /// the file grows as it would). The filter's kinds do not matter: only writes are counted.
    pub fn lose_nth_write(&self, filter: impl Into<Filter>, nth: u64) {
        let mut state = self.state.lock();
        state.plans.add_lie(filter.into(), nth, Action::Lose, OperationKind::Write);
    }

    /// Plans a lie: the `nth` read (from 1) that `filter` matches returns a buffer with flipped bits. The
    /// stored data is intact, and reading the same bytes again would be right. The filter's kinds do not
    /// matter: only reads are counted.
    pub fn corrupt_nth_read(&self, filter: impl Into<Filter>, nth: u64) {
        let mut state = self.state.lock();
        state.plans.add_lie(filter.into(), nth, Action::CorruptRead, OperationKind::Read);
    }
}
