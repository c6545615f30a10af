//! What a translation layer works on: the NAND, a list for the clock of what was done to it, and counts of who asked.
//!
//! Invariant: every operation of the NAND that was carried out, well or not, stands in the batch once, in order.

use crate::{
    Batch, BlockId, Error, Geometry, Nand, Operation, OperationKind, PageId, RequestKind, Result, Rules,
};

/// On whose behalf an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The host's: it moves the host's bytes.
    Host,
    /// The translation layer's own: collection, merges, mapping pages.
    Internal,
}

/// An operation that was done, for others of its task to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done(u32);

impl Done {
    /// Wait for nothing.
    pub const NOTHING: Self = Self(Operation::NONE);
}

/// Operations by who asked for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashCounters {
    /// Page reads for the host.
    pub host_reads: u64,
    /// Page reads of the translation layer.
    pub internal_reads: u64,
    /// Page programs for the host.
    pub host_programs: u64,
    /// Page programs of the translation layer.
    pub internal_programs: u64,
    /// Block erases.
    pub erases: u64,
}

impl FlashCounters {
    /// Pages programmed for each page that the host wrote; 1 before the first.
    pub fn write_amplification(&self) -> f64 {
        if self.host_programs == 0 {
            return 1.0;
        }
        (self.host_programs + self.internal_programs) as f64 / self.host_programs as f64
    }
}

impl std::ops::Sub for FlashCounters {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            host_reads: self.host_reads - earlier.host_reads,
            internal_reads: self.internal_reads - earlier.internal_reads,
            host_programs: self.host_programs - earlier.host_programs,
            internal_programs: self.internal_programs - earlier.internal_programs,
            erases: self.erases - earlier.erases,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Flash {
    nand: Nand,
    batch: Batch,
    counters: FlashCounters,
}

impl Flash {
    /// Erased flash. All that chance decides in it follows from `seed`.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub fn new(geometry: Geometry, rules: Rules, seed: u64) -> Result<Self> {
        Ok(Self {
            nand: Nand::new(geometry, rules, seed)?,
            batch: Batch::default(),
            counters: FlashCounters::default(),
        })
    }

    /// The flash itself.
    pub fn nand(&self) -> &Nand {
        &self.nand
    }

    /// For planning faults and power loss.
    pub fn nand_mut(&mut self) -> &mut Nand {
        &mut self.nand
    }

    /// What it is made of.
    pub fn geometry(&self) -> Geometry {
        *self.nand.geometry()
    }

    /// Who asked for what.
    pub fn counters(&self) -> FlashCounters {
        self.counters
    }

    /// What was done since the batch was cleared.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Begins a request of the host; see [`Batch`].
    pub fn begin_request(&mut self, kind: RequestKind, bytes: u32) {
        self.batch.begin_request(kind, bytes);
    }

    /// The request that was begun last is of so many bytes less; see [`Batch`].
    pub(crate) fn shorten_request(&mut self, bytes: u32) {
        self.batch.shorten_request(bytes);
    }

    /// Begins a task of the request, which waits for no other; see [`Batch`].
    pub fn begin_task(&mut self) {
        self.batch.begin_task();
    }

    /// All that was done has been timed and has ended: power loss does not undo it any more.
    pub fn settle(&mut self) {
        self.batch.clear();
        self.nand.settle();
    }

    /// What follows in this task begins when all before it in this task has ended: after a power loss it is
    /// found done only if all before it is.
    pub fn fence(&mut self) {
        self.batch.fence();
        self.nand.settle();
    }

    /// What follows in this task begins when all before it has ended, but needs nothing of it after a power loss (a
    /// program behind the read that it takes its bytes from).
    pub fn wait(&mut self) {
        self.batch.fence();
    }

    /// The host has its answer; the rest of the task goes on in the background.
    pub fn answered(&mut self) {
        self.batch.answered();
    }

    fn note(&mut self, kind: OperationKind, page: PageId, bytes: usize, after: Done) -> Done {
        let geometry = self.nand.geometry();
        let place = (geometry.unit_of(geometry.block_of(page)), page.0);
        Done(self.batch.add_of_page(kind, place, bytes as u32, after.0))
    }

    fn note_program(
        &mut self,
        origin: Origin,
        page: PageId,
        bytes: usize,
        after: Done,
        result: Result<()>,
    ) -> Result<Done> {
        if !carried_out(&result) {
            return result.map(|()| Done::NOTHING);
        }
        match origin {
            Origin::Host => self.counters.host_programs += 1,
            Origin::Internal => self.counters.internal_programs += 1,
        }
        let done = self.note(OperationKind::Program, page, bytes, after);
        result.map(|()| done)
    }

    /// Reads part of a page.
    ///
    /// # Errors
    /// As [`Nand::read`].
    pub fn read(&mut self, origin: Origin, page: PageId, offset: usize, buffer: &mut [u8]) -> Result<Done> {
        self.read_with_spare(origin, page, offset, buffer, &mut [])
    }

    /// Reads the first bytes of a page's spare area. Always internal.
    ///
    /// # Errors
    /// As [`Nand::read_spare`].
    pub fn read_spare(&mut self, page: PageId, buffer: &mut [u8]) -> Result<Done> {
        self.read_with_spare(Origin::Internal, page, 0, &mut [], buffer)
    }

    /// Reads part of a page and the first bytes of its spare area: one read.
    ///
    /// # Errors
    /// As [`Nand::read`].
    pub fn read_with_spare(
        &mut self,
        origin: Origin,
        page: PageId,
        offset: usize,
        buffer: &mut [u8],
        spare: &mut [u8],
    ) -> Result<Done> {
        let result = self.nand.read_with_spare(page, offset, buffer, spare);
        if !carried_out(&result) {
            return result.map(|()| Done::NOTHING);
        }
        match origin {
            Origin::Host => self.counters.host_reads += 1,
            Origin::Internal => self.counters.internal_reads += 1,
        }
        let done = self.note(OperationKind::Read, page, buffer.len() + spare.len(), Done::NOTHING);
        result.map(|()| done)
    }

    /// Programs a page, when `after` has ended.
    ///
    /// # Errors
    /// As [`Nand::program`].
    pub fn program(
        &mut self,
        origin: Origin,
        page: PageId,
        data: &[u8],
        spare: &[u8],
        after: Done,
    ) -> Result<Done> {
        let result = self.nand.program(page, data, spare);
        self.note_program(origin, page, data.len() + spare.len(), after, result)
    }

    /// Programs a part of a page: bytes from an offset on, and bytes of the spare area from an offset on.
    ///
    /// # Errors
    /// As [`Nand::program_part`].
    pub fn program_part(
        &mut self,
        origin: Origin,
        page: PageId,
        (offset, data): (usize, &[u8]),
        (spare_offset, spare): (usize, &[u8]),
    ) -> Result<Done> {
        let result = self.nand.program_part(page, offset, data, spare_offset, spare);
        self.note_program(origin, page, data.len() + spare.len(), Done::NOTHING, result)
    }

    /// Reads a page and programs another with its bytes and its spare area. Always internal.
    ///
    /// # Errors
    /// As [`Nand::copy`].
    pub fn copy(&mut self, from: PageId, to: PageId) -> Result<Done> {
        let result = self.nand.copy(from, to);
        if !carried_out(&result) {
            return result.map(|()| Done::NOTHING);
        }
        self.counters.internal_reads += 1;
        let bytes = self.nand.geometry().page_bytes as usize;
        let read = self.note(OperationKind::Read, from, bytes, Done::NOTHING);
        // The source was unreadable: nothing was programmed.
        if matches!(result, Err(Error::Unreadable { .. })) {
            return result.map(|()| read);
        }
        self.note_program(Origin::Internal, to, bytes, read, result)
    }

    /// Erases a block when everything before in the task has ended.
    ///
    /// # Errors
    /// As [`Nand::erase`].
    pub fn erase(&mut self, block: BlockId) -> Result<Done> {
        let result = self.nand.erase(block);
        if carried_out(&result) {
            self.counters.erases += 1;
            self.batch.fence();
            let unit = self.nand.geometry().unit_of(block);
            let done = Done(self.batch.add(OperationKind::Erase, unit, 0, Operation::NONE));
            result.map(|()| done)
        } else {
            result.map(|()| Done::NOTHING)
        }
    }
}

/// Whether the flash was busy with it, well or not.
fn carried_out(result: &Result<()>) -> bool {
    matches!(
        result,
        Ok(()) | Err(Error::ProgramFailed { .. } | Error::EraseFailed { .. } | Error::Unreadable { .. })
    )
}
