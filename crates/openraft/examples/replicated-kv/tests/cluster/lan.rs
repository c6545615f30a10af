//! A network of namespaces, for tests that run as root: each node has a TCP stack and an interface of its own, and the switch between them is in
//! this process.
//!
//! ```text
//! namespace 1: tap ──┐
//! namespace 2: tap ──┤ switch: each direction of each pair of ports may be cut, lose frames, or delay them
//! namespace 3: tap ──┘
//! this process: tap ──┘ (port 0; never at fault)
//! ```
//! So whatever TCP does about lost and late packets is part of the test. The switch needs nothing of the kernel but TAP devices and
//! namespaces: `netem` is not in every kernel.

use rand::Rng;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// Bytes of a frame, at most: the interfaces have an MTU of 1500.
const FRAME_MAX: usize = 2048;
/// The port of this process.
const OWN: u64 = 0;

/// What happens on the way from one port to another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    /// Nothing arrives.
    pub is_cut: bool,
    /// Of a hundred frames so many are lost.
    pub loss_percent: u32,
    /// A frame takes between half as long and so long.
    pub delay: Duration,
}

pub struct Lan {
    /// Different in each process and for each network of it.
    name: String,
    /// The third byte of the addresses.
    net: u8,
    switch: Arc<Switch>,
    namespaces: BTreeSet<u64>,
}

#[derive(Default)]
struct Switch {
    ports: RwLock<BTreeMap<u64, Arc<SyncDevice>>>,
    ways: RwLock<BTreeMap<(u64, u64), Way>>,
    late: Mutex<BinaryHeap<Late>>,
    is_later: Condvar,
    is_done: AtomicBool,
    /// Frames that were lost or cut off, and frames that were delayed.
    lost: AtomicU64,
    delayed: AtomicU64,
}

/// A frame that is on its way.
struct Late {
    due: Instant,
    to: u64,
    frame: Vec<u8>,
}

impl PartialEq for Late {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Late {}

impl PartialOrd for Late {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Late {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.due.cmp(&self.due)
    }
}

/// Why there can be no network of namespaces here.
pub fn is_missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root makes network namespaces");
    }
    if std::fs::File::options().read(true).write(true).open("/dev/net/tun").is_err() {
        return Some("/dev/net/tun cannot be opened");
    }
    let has_ip = Command::new("ip").args(["netns", "list"]).output().is_ok_and(|ip| ip.status.success());
    if has_ip { None } else { Some("ip (iproute2) is missing or knows no namespaces") }
}

fn ip(arguments: &str) {
    let run = Command::new("ip").args(arguments.split_whitespace()).output().expect("ip runs");
    assert!(run.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&run.stderr));
}

/// The address of a port's interface: it has the port's number.
fn mac(port: u64) -> String {
    format!("02:53:41:50:57:{port:02x}")
}

impl Lan {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, SeqCst));
        let switch = Arc::new(Switch::default());
        let net = ((u64::from(process) * 4 + number) % 250) as u8;
        let lan = Self { name: format!("sw{process}x{number}"), net, switch, namespaces: BTreeSet::new() };
        lan.attach(OWN);
        let switch = Arc::clone(&lan.switch);
        std::thread::spawn(move || switch.deliver_late());
        lan
    }

    pub fn host(&self, id: u64) -> String {
        let host = if id == OWN { 254 } else { id };
        format!("10.83.{}.{host}", self.net)
    }

    fn namespace(&self, id: u64) -> String {
        format!("{}n{id}", self.name)
    }

    /// The program and the arguments that run a command in a node's namespace. It becomes that process itself.
    pub fn command(&mut self, id: u64) -> Command {
        if self.namespaces.insert(id) {
            ip(&format!("netns add {}", self.namespace(id)));
            self.attach(id);
        }
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(id)]);
        command
    }

    fn attach(&self, port: u64) {
        assert!(port < 200, "the last byte of an address is the port");
        let device = format!("{}t{port}", self.name);
        let tap = DeviceBuilder::new().name(&device).layer(Layer::L2).build_sync().expect("a TAP device");
        let within = if port == OWN {
            String::new()
        } else {
            ip(&format!("link set {device} netns {}", self.namespace(port)));
            ip(&format!("-n {} link set lo up", self.namespace(port)));
            format!("-n {} ", self.namespace(port))
        };
        ip(&format!("{within}link set {device} address {}", mac(port)));
        ip(&format!("{within}addr add {}/24 dev {device}", self.host(port)));
        ip(&format!("{within}link set {device} up"));
        let (switch, tap) = (Arc::clone(&self.switch), Arc::new(tap));
        switch.ports.write().expect("not poisoned").insert(port, Arc::clone(&tap));
        std::thread::spawn(move || switch.forward(port, &tap));
    }

    /// Says what happens from one node to another, from now on.
    pub fn set(&self, from: u64, to: u64, way: Way) {
        assert!(from != OWN && to != OWN, "the way to this process is never at fault");
        self.switch.ways.write().expect("not poisoned").insert((from, to), way);
    }

    /// Takes the interface of a node down, or up: then this process does not reach it either.
    pub fn link(&self, id: u64, state: &str) {
        ip(&format!("-n {} link set {}t{id} {state}", self.namespace(id), self.name));
    }

    pub fn heal(&self) {
        self.switch.ways.write().expect("not poisoned").clear();
    }

    /// Frames that were lost, and that were delayed, up to now.
    pub fn counts(&self) -> (u64, u64) {
        (self.switch.lost.load(SeqCst), self.switch.delayed.load(SeqCst))
    }
}

impl Switch {
    /// Takes the frames of a port, until the network ends.
    fn forward(&self, from: u64, tap: &SyncDevice) {
        let mut buffer = vec![0; FRAME_MAX];
        while !self.is_done.load(SeqCst) {
            // A device that goes away, or an interface that is down.
            let Ok(length) = tap.recv(&mut buffer) else {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            let frame = &buffer[..length];
            let Some(destination) = frame.first_chunk::<6>() else { continue };
            let is_broadcast = destination[0] & 1 == 1;
            let ports: Vec<u64> = self.ports.read().expect("not poisoned").keys().copied().collect();
            for to in ports {
                if to != from && (is_broadcast || u64::from(destination[5]) == to) {
                    self.send(from, to, frame);
                }
            }
        }
    }

    fn send(&self, from: u64, to: u64, frame: &[u8]) {
        let way = self.ways.read().expect("not poisoned").get(&(from, to)).copied().unwrap_or_default();
        let mut random = rand::rng();
        if way.is_cut || random.random_range(0..100) < way.loss_percent {
            self.lost.fetch_add(1, SeqCst);
            return;
        }
        if way.delay.is_zero() {
            return self.deliver(to, frame);
        }
        self.delayed.fetch_add(1, SeqCst);
        let due = Instant::now() + way.delay.mul_f64(random.random_range(0.5..1.0));
        self.late.lock().expect("not poisoned").push(Late { due, to, frame: frame.to_vec() });
        self.is_later.notify_one();
    }

    fn deliver(&self, to: u64, frame: &[u8]) {
        let port = self.ports.read().expect("not poisoned").get(&to).cloned();
        // An interface that is down, or a full queue, loses frames as a wire does.
        _ = port.map(|port| port.send(frame));
    }

    fn deliver_late(&self) {
        let mut late = self.late.lock().expect("not poisoned");
        while !self.is_done.load(SeqCst) {
            let now = Instant::now();
            let wait = late
                .peek()
                .map_or(Duration::from_millis(100), |first| first.due.saturating_duration_since(now));
            if wait.is_zero() {
                let first = late.pop().expect("there is one");
                drop(late);
                self.deliver(first.to, &first.frame);
                late = self.late.lock().expect("not poisoned");
            } else {
                late = self.is_later.wait_timeout(late, wait).expect("not poisoned").0;
            }
        }
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        self.switch.is_done.store(true, SeqCst);
        for id in &self.namespaces {
            // The interfaces go with them. Each wakes the thread that reads it.
            _ = Command::new("ip").args(["netns", "delete", &self.namespace(*id)]).output();
        }
        _ = Command::new("ip").args(["link", "delete", &format!("{}t{OWN}", self.name)]).output();
    }
}
