//! The client of etcd. It fulfils the contract of [`farblock_group::store`].
//!
//! Each endpoint has a connection of its own. A request goes to the endpoint that answered last. If
//! the answer is late, the request goes to the next endpoint as well, and the first answer counts.
//! So an endpoint that hangs, or whose answers are lost, costs a fraction of the time limit. A
//! request may therefore be executed twice. All transactions of the group compare revisions, so the
//! second execution changes nothing and reads the result of the first.
//!
//! Every request carries etcd's `hasleader`: a member of etcd without a leader refuses it at once,
//! and this is [`StoreTrouble::NoQuorum`]. All other failures are [`StoreTrouble::Silent`].

use crate::etcd::EtcdConfig;
use crate::status::StoreStatus;
use etcd_client::{
    Certificate, Client, Compare, CompareOp, ConnectOptions, Error, EventType, GetOptions,
    Identity, LeaseKeepAliveStream, LeaseKeeper, PutOptions, TlsOptions, Txn as EtcdTxn, TxnOp,
    TxnOpResponse, WatchOptions,
};
use farblock_group::store::{
    Change, Entry, LeaseId, Read, StoreReply, StoreRequest, StoreTrouble, Txn, TxnReply,
    WatchEvent, Write,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{sleep, timeout};

/// The maximum size of a reply, in bytes. The records of 1,000 namespaces with their reservations
/// fit many times.
const MAX_REPLY_BYTES: usize = 64 << 20;

/// The time limit to connect to an endpoint and to sign in. etcd makes the check of a password slow
/// on purpose, so this may take longer than the time limit of a request.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

struct Endpoint {
    url: String,
    client: RefCell<Option<Client>>,
    connecting: RefCell<Option<Rc<Connecting>>>,
    keeper: RefCell<Option<Keeper>>,
}

/// An attempt to connect, for which any number of requests wait. It continues when those requests
/// time out.
#[derive(Default)]
struct Connecting {
    result: RefCell<Option<Result<Client, Rc<Error>>>>,
    has_ended: Notify,
}

/// The open stream for renewals of a lease. A new stream for each renewal would cost processor
/// time.
struct Keeper {
    lease: LeaseId,
    requests: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl Keeper {
    /// Renews the lease. Returns whether the lease still exists; `None`: the stream has ended.
    async fn renew(&mut self) -> Option<bool> {
        self.requests.keep_alive().await.ok()?;
        Some(self.answers.message().await.ok()??.ttl() > 0)
    }
}

struct Endpoints {
    endpoints: Vec<Endpoint>,
    options: ConnectOptions,
    /// The time limit of a request.
    limit: Duration,
    /// The endpoint that answered last.
    best: Cell<usize>,
    answered: Cell<Option<Instant>>,
    trouble: RefCell<Option<String>>,
}

/// A client of etcd, on the thread of the member.
#[derive(Clone)]
pub(crate) struct EtcdStore {
    shared: Rc<Endpoints>,
}

impl EtcdStore {
    /// Creates a client. It connects at the first request. `hold`: see
    /// [`Timing::hold`](farblock_group::Timing::hold).
    pub(crate) fn new(config: &EtcdConfig, hold: Duration) -> Self {
        // The contract of the store requires less than a quarter of the hold.
        let limit = hold / 5;
        let mut options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true)
            .with_connect_timeout(CONNECT_LIMIT)
            .with_keep_alive(hold / 2, hold / 2);
        if let Some((name, password)) = &config.user {
            options = options.with_user(name, password);
        }
        if let Some(tls) = &config.tls {
            let mut its = TlsOptions::new();
            if !tls.authorities.is_empty() {
                its = its.ca_certificate(Certificate::from_pem(&tls.authorities));
            }
            if let Some((certificate, key)) = &tls.identity {
                its = its.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(its);
        }
        let endpoint = |url: &String| Endpoint {
            url: url.clone(),
            client: RefCell::default(),
            connecting: RefCell::default(),
            keeper: RefCell::default(),
        };
        let shared = Endpoints {
            endpoints: config.endpoints.iter().map(endpoint).collect(),
            options,
            limit,
            best: Cell::new(0),
            answered: Cell::new(None),
            trouble: RefCell::new(None),
        };
        Self { shared: Rc::new(shared) }
    }

    /// The state of the connection. `fresh`: an answer within this time is recent.
    pub(crate) fn status(&self, fresh: Duration) -> StoreStatus {
        let shared = &self.shared;
        let age = shared.answered.get().map(|at| at.elapsed());
        let endpoint = age.map(|_| shared.endpoints[shared.best.get()].url.clone());
        StoreStatus {
            reachable: age.is_some_and(|age| age <= fresh),
            last_answer_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            endpoint,
            trouble: shared.trouble.borrow().clone(),
        }
    }

    /// Executes a request, within the time limit.
    pub(crate) async fn request(&self, request: StoreRequest) -> StoreReply {
        let shared = &self.shared;
        let count = shared.endpoints.len();
        let first = shared.best.get();
        let mut remaining = (0..count).map(|i| (first + i) % count);
        let mut attempts = JoinSet::new();
        let mut trouble = StoreTrouble::Silent;
        let mut begin = |attempts: &mut JoinSet<_>| {
            let Some(index) = remaining.next() else { return false };
            let (store, request) = (self.clone(), request.clone());
            attempts.spawn_local(async move { (index, store.attempt(index, request).await) });
            true
        };
        let end = sleep(shared.limit);
        tokio::pin!(end);
        let mut more = begin(&mut attempts);
        loop {
            let hedge = sleep(shared.limit / 3);
            tokio::select! {
                () = &mut end => return StoreReply::Failed(trouble),
                Some(Ok((index, result))) = attempts.join_next() => match result {
                    Ok(reply) => {
                        shared.best.set(index);
                        shared.answered.set(Some(Instant::now()));
                        shared.trouble.replace(None);
                        return reply;
                    }
                    Err(error) => {
                        if is_refused_client(&error) {
                            // etcd has restarted, or its users have changed: sign in again.
                            shared.endpoints[index].client.replace(None);
                        }
                        if is_no_quorum(&error) {
                            trouble = StoreTrouble::NoQuorum;
                        }
                        let url = &shared.endpoints[index].url;
                        shared.trouble.replace(Some(format!("{url}: {}", in_words(&error))));
                        more = more && begin(&mut attempts);
                        if attempts.is_empty() {
                            return StoreReply::Failed(trouble);
                        }
                    }
                },
                () = hedge, if more => more = begin(&mut attempts),
            }
        }
    }

    async fn client(&self, index: usize) -> Result<Client, Rc<Error>> {
        if let Some(client) = self.shared.endpoints[index].client.borrow().as_ref() {
            return Ok(client.clone());
        }
        let connecting = self.connecting(index);
        loop {
            if let Some(result) = connecting.result.borrow().as_ref() {
                return result.clone();
            }
            connecting.has_ended.notified().await;
        }
    }

    /// Returns the attempt to connect to an endpoint, and begins one if there is none.
    fn connecting(&self, index: usize) -> Rc<Connecting> {
        let place = &self.shared.endpoints[index].connecting;
        if let Some(connecting) = place.borrow().as_ref() {
            return Rc::clone(connecting);
        }
        let connecting = Rc::new(Connecting::default());
        place.replace(Some(Rc::clone(&connecting)));
        let (store, its) = (self.clone(), Rc::clone(&connecting));
        spawn_local(async move {
            let result = store.connect(index).await.map_err(Rc::new);
            let endpoint = &store.shared.endpoints[index];
            endpoint.client.replace(result.as_ref().ok().cloned());
            endpoint.connecting.replace(None);
            its.result.replace(Some(result));
            its.has_ended.notify_waiters();
        });
        connecting
    }

    async fn connect(&self, index: usize) -> Result<Client, Error> {
        let shared = &self.shared;
        let connected =
            Client::connect([&shared.endpoints[index].url], Some(shared.options.clone()));
        let late = || Error::IoError(std::io::ErrorKind::TimedOut.into());
        timeout(CONNECT_LIMIT, connected).await.unwrap_or_else(|_| Err(late()))
    }

    async fn attempt(&self, index: usize, request: StoreRequest) -> Result<StoreReply, Rc<Error>> {
        let client = self.client(index).await?;
        self.execute(index, client, request).await.map_err(Rc::new)
    }

    async fn execute(
        &self,
        index: usize,
        mut client: Client,
        request: StoreRequest,
    ) -> Result<StoreReply, Error> {
        match request {
            StoreRequest::Grant { ttl } => {
                let seconds = ttl.as_millis().div_ceil(1000).max(1);
                let granted = client.lease_grant(i64::try_from(seconds).unwrap_or(1), None).await?;
                Ok(StoreReply::Granted(LeaseId(granted.id())))
            }
            StoreRequest::Renew(lease) => self.renew(index, &mut client, lease).await,
            StoreRequest::Revoke(lease) => match client.lease_revoke(lease.0).await {
                Ok(_) => Ok(StoreReply::Revoked),
                Err(error) if error.to_string().contains("lease not found") => {
                    Ok(StoreReply::Revoked)
                }
                Err(error) => Err(error),
            },
            StoreRequest::TimeLeft(lease) => {
                let reply = client.lease_time_to_live(lease.0, None).await?;
                // A lease that does not exist has -1 seconds.
                let seconds = |number| Duration::from_secs(unsigned(number));
                let (granted, left) = (seconds(reply.granted_ttl()), seconds(reply.ttl()));
                Ok(StoreReply::TimeLeft { granted, left })
            }
            StoreRequest::Txn(txn) => {
                let mut kv = client.kv_client().max_decoding_message_size(MAX_REPLY_BYTES);
                let reply = kv.txn(to_etcd(&txn)).await?;
                let revision = reply.header().map_or(0, etcd_client::ResponseHeader::revision);
                let entries = reply.op_responses().iter().flat_map(entries_of).collect();
                let revision = unsigned(revision);
                let succeeded = reply.succeeded();
                Ok(StoreReply::Done(TxnReply { succeeded, revision, entries }))
            }
            StoreRequest::Watch { .. } => Err(Error::InvalidArgs("a watch is no request".into())),
        }
    }

    async fn renew(
        &self,
        index: usize,
        client: &mut Client,
        lease: LeaseId,
    ) -> Result<StoreReply, Error> {
        let place = &self.shared.endpoints[index].keeper;
        // An abandoned renewal drops its stream, so no later renewal gets its answer.
        let kept = place.borrow_mut().take().filter(|kept| kept.lease == lease);
        if let Some(mut keeper) = kept
            && let Some(is_renewed) = keeper.renew().await
        {
            place.replace(is_renewed.then_some(keeper));
            return Ok(StoreReply::Renewed(is_renewed));
        }
        match client.lease_keep_alive(lease.0).await {
            Ok((requests, answers)) => {
                place.replace(Some(Keeper { lease, requests, answers }));
                Ok(StoreReply::Renewed(true))
            }
            Err(Error::LeaseKeepAliveError(_)) => Ok(StoreReply::Renewed(false)),
            Err(error) => Err(error),
        }
    }

    /// Watches keys until the watch ends, and passes each report to `report`.
    pub(crate) async fn watch(&self, prefix: String, from: u64, report: impl Fn(WatchEvent)) {
        report(self.watch_until_end(prefix, from, &report).await.unwrap_or(WatchEvent::Lost));
    }

    async fn watch_until_end(
        &self,
        prefix: String,
        from: u64,
        report: &impl Fn(WatchEvent),
    ) -> Option<WatchEvent> {
        let limit = self.shared.limit;
        let client = timeout(limit, self.client(self.shared.best.get())).await.ok()?.ok()?;
        let mut client = client.watch_client().max_decoding_message_size(MAX_REPLY_BYTES);
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let mut stream = timeout(limit, client.watch(prefix, Some(options))).await.ok()?.ok()?;
        while let Some(reply) = stream.message().await.ok()? {
            if reply.compact_revision() > 0 {
                return Some(WatchEvent::Compacted);
            }
            if reply.canceled() {
                return None;
            }
            let changes: Vec<_> = reply.events().iter().filter_map(change_of).collect();
            if !changes.is_empty() {
                report(WatchEvent::Changed(changes));
            }
        }
        None
    }
}

/// Whether a member of etcd reports that it has no leader, and so no quorum.
fn is_no_quorum(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("no leader"))
}

/// Describes an error of the connection for an operator.
fn in_words(error: &Error) -> String {
    let text = error.to_string();
    let known = [
        ("authentication failed", "etcd refuses the user or the password"),
        ("permission denied", "the user of etcd may not read and write the keys farblock/"),
        ("user name is empty", "etcd demands a user and a password"),
        (
            "invalid peer certificate",
            "etcd's certificate is invalid, or none of the given authorities signed it",
        ),
        ("BadCertificate", "etcd refuses this member's certificate, or demands one"),
        ("CertificateRequired", "etcd demands a certificate of this member"),
        ("UnknownCA", "etcd does not know the authority of this member's certificate"),
        (
            "operation was canceled",
            "etcd closed the connection (it may demand a certificate of this member)",
        ),
        ("broken pipe", "etcd closed the connection (it may demand a certificate of this member)"),
        ("timed out", "etcd does not answer"),
        ("Connection refused", "connection refused"),
        ("ConnectionRefused", "connection refused"),
        ("no leader", "etcd has no quorum"),
    ];
    let found = known.iter().find(|(part, _)| text.contains(part));
    found.map_or(text.clone(), |(_, sentence)| (*sentence).to_owned())
}

/// Whether etcd does not know the token of this client any more.
fn is_refused_client(error: &Error) -> bool {
    let texts = ["invalid auth token", "revision of auth store is old", "user name is empty"];
    matches!(error, Error::GRpcStatus(status)
        if texts.iter().any(|text| status.message().contains(text)))
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn to_etcd(txn: &Txn) -> EtcdTxn {
    let compare = |it: &farblock_group::store::Compare| {
        let revision = i64::try_from(it.revision).unwrap_or(i64::MAX);
        Compare::mod_revision(it.key.as_str(), CompareOp::Equal, revision)
    };
    let write = |write: &Write| match write {
        Write::Put { key, value, lease } => {
            let options = lease.map(|lease| PutOptions::new().with_lease(lease.0));
            TxnOp::put(key.as_str(), value.clone(), options)
        }
        Write::Delete { key } => TxnOp::delete(key.as_str(), None),
    };
    let read = |read: &Read| match read {
        Read::Key(key) => TxnOp::get(key.as_str(), None),
        Read::Prefix(prefix) => TxnOp::get(prefix.as_str(), Some(GetOptions::new().with_prefix())),
    };
    let reads: Vec<_> = txn.reads.iter().map(read).collect();
    let success: Vec<_> = txn.writes.iter().map(write).chain(reads.clone()).collect();
    let compares: Vec<_> = txn.compares.iter().map(compare).collect();
    EtcdTxn::new().when(compares).and_then(success).or_else(reads)
}

fn entries_of(reply: &TxnOpResponse) -> Vec<Entry> {
    let TxnOpResponse::Get(reply) = reply else { return Vec::new() };
    let entry = |it: &etcd_client::KeyValue| {
        let key = std::str::from_utf8(it.key()).ok()?.to_owned();
        Some(Entry { key, value: it.value().into(), revision: unsigned(it.mod_revision()) })
    };
    reply.kvs().iter().filter_map(entry).collect()
}

fn change_of(event: &etcd_client::Event) -> Option<Change> {
    let it = event.kv()?;
    let key = std::str::from_utf8(it.key()).ok()?.to_owned();
    let value = (event.event_type() == EventType::Put).then(|| it.value().into());
    Some(Change { key, value, revision: unsigned(it.mod_revision()) })
}
