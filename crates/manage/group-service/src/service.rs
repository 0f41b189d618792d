//! Starts and stops a member, and passes an operator's changes to it.

use crate::change::{ATTEMPTS, Change};
use crate::changes::Changes;
use crate::clock;
use crate::config::ServiceConfig;
use crate::disks::{Disks, Events};
use crate::driver::{Declared, Driver};
use crate::folder::FolderLock;
use crate::guard::Guard;
use crate::input::Input;
use crate::notice::Enlisted;
use crate::status::GroupStatus;
use crate::store::EtcdStore;
use farblock_group::{Duty, Member, MemberConfig, MemberEvent, is_name};
use rustix::rand::{GetRandomFlags, getrandom};
use std::fmt;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::LocalSet;

/// The time limit of an operator's change: five attempts at a request to etcd, and their pauses.
const CHANGE_LIMIT: Duration = Duration::from_secs(10);

/// The reason for which a member cannot start, as one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartError(pub(crate) String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

/// Starts a member on a thread of its own. Returns before etcd has answered: a member may start
/// while etcd is unavailable. The thread first creates the disks with `disks`.
///
/// # Errors
/// A setting is invalid, or another process uses the state folder.
pub fn start<D>(config: ServiceConfig, disks: D) -> Result<Service, StartError>
where
    D: FnOnce(Events) -> Box<dyn Disks> + Send + 'static,
{
    for name in [&config.group, &config.name] {
        if !is_name(name) {
            let rule = "use lowercase letters, digits, '-' and '.', 63 at most";
            return Err(StartError(format!(
                "\"{name}\" is not a name of a group or member: {rule}"
            )));
        }
    }
    if config.etcd.endpoints.is_empty() {
        return Err(StartError("a group needs the address of etcd".to_owned()));
    }
    let mut process = [0; 8];
    getrandom(&mut process, GetRandomFlags::empty())
        .map_err(|error| StartError(format!("the kernel gives no random number: {error}")))?;
    let process = u64::from_le_bytes(process);
    let lock = lock(&config, process)?;
    if let Some(watchdog) = &config.watchdog {
        let hold_ms = u64::try_from(config.timing.hold.as_millis()).unwrap_or(u64::MAX);
        let (group, name) = (config.group.clone(), config.name.clone());
        let etcd = config.etcd.clone();
        // Ignore an error: certificates may be too large for the message. Without the message,
        // other members wait until the lease of this process ends.
        let _ = watchdog.enlist(Enlisted { etcd, group, name, process, hold_ms });
    }
    let (sender, inputs) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| StartError(format!("cannot use the clock: {error}")))?;
    let its = sender.clone();
    let changes = Changes::default();
    let counted = changes.clone();
    let main = move || {
        let disks = disks(Events::new(its.clone()));
        let member = member_of(&config, process, lock.as_ref());
        let store = EtcdStore::new(&config.etcd, config.timing.hold);
        let guard = Guard::new(config.watchdog, config.timing);
        let declared = Declared { fences: config.ana_groups, namespaces: config.namespaces };
        let driver = Driver::new(member, store, disks, guard, its, declared, lock);
        LocalSet::new().block_on(&runtime, driver.run(inputs, &counted));
    };
    let thread = std::thread::Builder::new().name("group".to_owned()).spawn(main);
    let thread = thread.map_err(|error| StartError(format!("cannot start a thread: {error}")))?;
    Ok(Service { sender, changes, thread: Some(thread) })
}

fn lock(config: &ServiceConfig, process: u64) -> Result<Option<FolderLock>, StartError> {
    let Some(folder) = &config.state_folder else { return Ok(None) };
    let lock = FolderLock::take(folder, &config.group, &config.name);
    let lock = lock.and_then(|mut lock| lock.note(process).map(|()| lock));
    lock.map(Some).map_err(|error| {
        let place = folder.display();
        let name = &config.name;
        StartError(match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                format!("another process is member {name} with the state folder {place}; stop it")
            }
            _ => format!("cannot lock the state folder {place}: {error}"),
        })
    })
}

fn member_of(config: &ServiceConfig, process: u64, lock: Option<&FolderLock>) -> Member {
    let member = MemberConfig {
        group: config.group.clone(),
        name: config.name.clone(),
        process,
        addresses: config.addresses.clone(),
        weight: config.weight,
        program: config.program.clone(),
        predecessors: lock.map(|lock| lock.before.clone()).unwrap_or_default(),
        timing: config.timing,
    };
    Member::new(member, clock::now())
}

/// A running member. Dropping it stops the member's I/O but keeps its leaderships, for a quick
/// restart of the process.
#[derive(Debug)]
pub struct Service {
    sender: UnboundedSender<Input>,
    changes: Changes,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// The group as this member sees it now.
    #[must_use]
    pub fn snapshot(&self) -> GroupStatus {
        let (answer, answers) = sync_channel(1);
        let _ = self.sender.send(Input::Snapshot(answer));
        answers.recv_timeout(CHANGE_LIMIT).unwrap_or_default()
    }

    /// Returns the counter of the group's changes, on which a thread can wait.
    #[must_use]
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    fn change(&self, change: Change) -> Result<(), String> {
        let (answer, answers) = sync_channel(1);
        let input = Input::Change { change, attempts: ATTEMPTS, answer: Some(answer) };
        let _ = self.sender.send(input);
        let late = |_| Err("etcd does not answer in time; the change may still happen".to_owned());
        answers.recv_timeout(CHANGE_LIMIT).unwrap_or_else(late)
    }

    /// Chooses the member that leads an ANA group while that member is alive.
    ///
    /// # Errors
    /// A sentence for the user: no such member, other changes came first, or etcd did not answer in
    /// time. In the last case the change may still happen.
    pub fn pin(&self, ana_group: u32, member: &str) -> Result<(), String> {
        self.change(Change::Pin { ana_group, member: member.to_owned() })
    }

    /// Lets the group choose the leader of an ANA group again, after [`Self::pin`].
    ///
    /// # Errors
    /// A sentence for the user: no such member, other changes came first, or etcd did not answer in
    /// time. In the last case the change may still happen.
    pub fn unpin(&self, ana_group: u32) -> Result<(), String> {
        self.change(Change::Unpin { ana_group })
    }

    /// Orders a member to serve, to drain or to pause.
    ///
    /// # Errors
    /// A sentence for the user: no such member, other changes came first, or etcd did not answer in
    /// time. In the last case the change may still happen.
    pub fn order(&self, member: &str, duty: Duty) -> Result<(), String> {
        self.change(Change::Order { member: member.to_owned(), duty })
    }

    /// Starts a rolling upgrade, or continues an unfinished one.
    ///
    /// # Errors
    /// A sentence for the user: no such member, other changes came first, or etcd did not answer in
    /// time. In the last case the change may still happen.
    pub fn begin_upgrade(&self) -> Result<(), String> {
        self.change(Change::BeginUpgrade)
    }

    /// Ends a rolling upgrade. The members keep their orders.
    ///
    /// # Errors
    /// A sentence for the user: no such member, other changes came first, or etcd did not answer in
    /// time. In the last case the change may still happen.
    pub fn end_upgrade(&self) -> Result<(), String> {
        self.change(Change::EndUpgrade)
    }

    /// Ends a member's process as soon as it leads no ANA group. Its supervisor starts it again.
    ///
    /// # Errors
    /// A sentence for the user: no such member, other changes came first, or etcd did not answer in
    /// time. In the last case the change may still happen.
    pub fn restart(&self, member: &str) -> Result<(), String> {
        self.change(Change::Restart { member: member.to_owned() })
    }

    /// Removes a dead member and its controller identifiers from the group.
    ///
    /// # Errors
    /// A sentence for the user: no such member, other changes came first, or etcd did not answer in
    /// time. In the last case the change may still happen.
    pub fn forget(&self, member: &str) -> Result<(), String> {
        self.change(Change::Forget { member: member.to_owned() })
    }

    /// Publishes the hosts that are connected to this member. Also marks the member as ready for
    /// hosts.
    pub fn set_hosts(&self, hosts: Vec<String>) {
        let _ = self.sender.send(Input::Hosts(hosts));
    }

    /// Hands every ANA group over and leaves the group. Returns whether this was done within the
    /// time limit.
    #[must_use]
    pub fn leave(self, limit: Duration) -> bool {
        let _ = self.sender.send(Input::Member(MemberEvent::Leave));
        let end = Instant::now() + limit;
        loop {
            if self.snapshot().left {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.sender.send(Input::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
