//! Clients that write and read at once, and note what they were answered.

use crate::history::{Call, Operation};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Clients at work.
pub struct Load {
    shared: Arc<Shared>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

struct Shared {
    client: Client,
    urls: Vec<String>,
    keys: Vec<String>,
    begin: Instant,
    history: Mutex<Vec<Operation>>,
    next: AtomicU64,
    is_done: AtomicBool,
}

/// What became of a request.
enum Outcome {
    /// It was answered.
    Answered(Response),
    /// It did not happen.
    Not,
    /// It may have happened, or may yet.
    Unknown,
}

impl Load {
    /// Starts so many clients, on keys that begin with `prefix`.
    pub fn start(client: &Client, urls: Vec<String>, prefix: &str, clients: usize, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            client: client.clone(),
            urls,
            keys: (0..6).map(|number| format!("{prefix}-{number}")).collect(),
            begin: Instant::now(),
            history: Mutex::default(),
            next: AtomicU64::new(1),
            is_done: AtomicBool::new(false),
        });
        let work = |number: usize| {
            let shared = Arc::clone(&shared);
            let rng = StdRng::seed_from_u64(seed * 1000 + number as u64);
            tokio::spawn(async move { shared.work(number, rng).await })
        };
        let tasks = (0..clients).map(work).collect();
        Self { shared, tasks }
    }

    /// Operations so far.
    pub fn operations(&self) -> usize {
        self.shared.history.lock().expect("not poisoned").len()
    }

    /// Ends, with the history.
    pub async fn end(self) -> Vec<Operation> {
        self.shared.is_done.store(true, SeqCst);
        for task in self.tasks {
            task.await.expect("a client does not panic");
        }
        std::mem::take(&mut self.shared.history.lock().expect("not poisoned"))
    }
}

impl Shared {
    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    async fn work(&self, client: usize, mut rng: StdRng) {
        // What each key was last seen to have.
        let mut seen = vec![0; self.keys.len()];
        while !self.is_done.load(SeqCst) {
            let number = rng.random_range(0..self.keys.len());
            let (key, url) = (&self.keys[number], &self.urls[rng.random_range(0..self.urls.len())]);
            let called = self.now();
            let (call, is_known) = match rng.random_range(0..10) {
                0..5 => {
                    let request = self.client.get(format!("{url}/records/{key}"));
                    let found = match self.send(request, url, &format!("/records/{key}")).await {
                        Outcome::Answered(answer) => value(answer).await,
                        // Whatever it would have found.
                        Outcome::Not | Outcome::Unknown => None,
                    };
                    let Some(found) = found else { continue };
                    seen[number] = found;
                    (Call::Get { found }, true)
                }
                5..8 => {
                    let value = self.next.fetch_add(1, SeqCst);
                    let request = self.client.put(format!("{url}/records/{key}")).body(value.to_string());
                    match self.send(request, url, &format!("/records/{key}")).await {
                        Outcome::Answered(_) => (Call::Put { value }, true),
                        Outcome::Not => continue,
                        Outcome::Unknown => (Call::Put { value }, false),
                    }
                }
                _ => {
                    let (old, new) = (seen[number], self.next.fetch_add(1, SeqCst));
                    let request = self.client.post(format!("{url}/commands")).json(&swap(key, old, new));
                    match self.send(request, url, "/commands").await {
                        Outcome::Answered(answer) => match answer.json::<Value>().await {
                            Ok(answer) => (Call::Swap { old, new, refused: refused(&answer) }, true),
                            Err(_) => (Call::Swap { old, new, refused: None }, false),
                        },
                        Outcome::Not => continue,
                        Outcome::Unknown => (Call::Swap { old, new, refused: None }, false),
                    }
                }
            };
            let returned = is_known.then(|| self.now());
            let operation = Operation { client, key: key.clone(), call, called, returned };
            self.history.lock().expect("not poisoned").push(operation);
        }
    }

    /// Sends a request, and again to the leader where it is sent to.
    async fn send(&self, request: reqwest::RequestBuilder, url: &str, path: &str) -> Outcome {
        let mut next = request.build().expect("a request");
        for _ in 0..3 {
            let again = next.try_clone().expect("its body is bytes");
            let answer = match self.client.execute(next).await {
                Ok(answer) => answer,
                Err(error) if error.is_connect() => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    return Outcome::Not;
                }
                Err(_) => return Outcome::Unknown,
            };
            match answer.status() {
                StatusCode::OK | StatusCode::NOT_FOUND => return Outcome::Answered(answer),
                StatusCode::TEMPORARY_REDIRECT => {
                    let location = answer.headers().get("location").and_then(|to| to.to_str().ok());
                    let location = location.expect("a redirect says where to");
                    assert!(
                        location.ends_with(path) && location != again.url().as_str(),
                        "{url} to {location}"
                    );
                    next = again;
                    *next.url_mut() = location.parse().expect("an address");
                }
                StatusCode::MISDIRECTED_REQUEST | StatusCode::TOO_MANY_REQUESTS => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    return Outcome::Not;
                }
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => return Outcome::Unknown,
                // A node that has stopped, whose disk is full for instance. Tests see by the records at the end whether one has that should
                // not have.
                StatusCode::INTERNAL_SERVER_ERROR => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    return Outcome::Not;
                }
                status => panic!("{status}: {:?}", answer.text().await),
            }
        }
        Outcome::Not
    }
}

/// The number that a record has.
async fn value(answer: Response) -> Option<u64> {
    if answer.status() == StatusCode::NOT_FOUND {
        return Some(0);
    }
    Some(answer.text().await.ok()?.parse().expect("a number"))
}

fn bytes(number: u64) -> Value {
    if number == 0 { Value::Null } else { json!(number.to_string().as_bytes()) }
}

fn swap(key: &str, old: u64, new: u64) -> Value {
    json!({
        "conditions": [{ "Value": { "key": key.as_bytes(), "value": bytes(old) } }],
        "writes": [{ "Put": { "key": key.as_bytes(), "value": bytes(new) } }],
    })
}

/// What was found in place of what was expected.
fn refused(answer: &Value) -> Option<u64> {
    let refused = answer.get("Refused")?;
    let value = refused["found"].get("value").and_then(Value::as_array);
    let Some(value) = value else { return Some(0) };
    let digits: String = value.iter().filter_map(Value::as_u64).map(|byte| char::from(byte as u8)).collect();
    Some(digits.parse().expect("a number"))
}
