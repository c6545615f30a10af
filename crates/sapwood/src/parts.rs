//! The parts of an open database that commits, background work and what users hold have in common. Each of these has the pointers
//! itself, so that a part is one step away.

use crate::cache::pager::Pager;
use crate::clock::Clock;
use crate::current_state::CurrentState;
use crate::flow::flush_control::FlushControl;
use crate::flow::flush_progress::FlushProgress;
use crate::flow::memory::MemoryBudget;
use crate::flow::shares::Shares;
use crate::followers::Followers;
use crate::health::Health;
use crate::pool::Pool;
use crate::publish::Publisher;
use crate::space::Space;
use psync::Volume;
use std::sync::Arc;

/// See the module documentation.
#[derive(Clone)]
pub(crate) struct Parts {
    pub health: Arc<Health>,
    pub volume: Arc<dyn Volume>,
    pub shares: Shares,
    pub pager: Arc<Pager>,
    pub state: Arc<CurrentState>,
    pub memory: Arc<MemoryBudget>,
    pub publisher: Arc<Publisher>,
    pub space: Arc<Space>,
    pub followers: Arc<Followers>,
    pub flush: Arc<FlushControl>,
    pub progress: Arc<FlushProgress>,
    pub pool: Arc<Pool>,
    pub clock: Arc<Clock>,
}
