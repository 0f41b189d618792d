//! [`Image`]: an open image with its keeper thread, which makes librbd's blocking calls.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use farblock_block::{Change, Changes};
use uuid::Uuid;

use crate::closing::{Keeper, Used};
use crate::error::{self, EACCES, EPERM, ERANGE, EROFS, OpenError};
use crate::library::{self, Cluster, ConfigOption, Functions, ImageHandle, IoContext};
use crate::limits;
use crate::name::Name;

/// The bit of the image feature `exclusive-lock` (`RBD_FEATURE_EXCLUSIVE_LOCK`).
const EXCLUSIVE_LOCK: u64 = 1 << 2;

/// An open image of a cluster. Namespaces, queues and operations in flight share it. When the last
/// of these users drops the image, the keeper thread closes it.
pub struct Image {
    name: Name,
    library: &'static Functions,
    handle: Handle,
    facts: Facts,
    size: Arc<SharedSize>,
    keeper: Sender<Message>,
    _used: Used,
}

/// The constant properties of an image.
#[derive(Clone)]
struct Facts {
    is_writable: bool,
    stripe_unit_bytes: u64,
    features: u64,
    identity: Uuid,
}

/// The size of an image, which may change.
struct SharedSize {
    bytes: AtomicU64,
    changes: Changes,
}

/// Messages to the keeper thread.
enum Message {
    /// The size of the image may have changed. The keeper queries it.
    Look,
    /// The last user has dropped the image. The keeper closes it.
    Close,
}

/// librbd's pointer to the image, which any thread may use.
#[derive(Clone, Copy)]
struct Handle(ImageHandle);

// SAFETY: any thread may call librbd's functions with an image.
unsafe impl Send for Handle {}
// SAFETY: several threads may call librbd's functions with an image at the same time.
unsafe impl Sync for Handle {}

/// The open images by name. Each image is opened only once.
static IMAGES: LazyLock<Mutex<HashMap<Name, Weak<Image>>>> = LazyLock::new(Mutex::default);

fn images() -> MutexGuard<'static, HashMap<Name, Weak<Image>>> {
    IMAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the image's UUID, which is the same on every machine; `None` if the image is not open in
/// this process.
#[must_use]
pub fn identity(name: &Name) -> Option<Uuid> {
    images().get(name).and_then(Weak::upgrade).map(|image| image.facts.identity)
}

impl Image {
    /// Opens an image, or returns it if it is already open. Takes at most [`limits::OPEN`].
    ///
    /// # Errors
    /// Returns a sentence with the reason.
    pub fn open(name: &Name) -> Result<Arc<Image>, OpenError> {
        if let Some(image) = images().get(name).and_then(Weak::upgrade) {
            return Ok(image);
        }
        let library = library::load()?;
        let (tell, told) = channel();
        let (keeper, messages) = channel();
        let (kept, sender) = (name.clone(), keeper.clone());
        let size = Arc::new(SharedSize { bytes: AtomicU64::new(0), changes: Changes::new() });
        let keeps = Arc::clone(&size);
        let run = move || keep(library, &kept, &keeps, sender, &messages, &tell);
        let thread = std::thread::Builder::new().name("rbd-keeper".to_owned()).spawn(run);
        thread.map_err(|error| {
            OpenError::Other(format!("cannot start a thread for the Ceph image: {error}"))
        })?;
        let opened = told.recv_timeout(limits::OPEN);
        let (handle, facts) = opened.unwrap_or_else(|_| {
            // The keeper may have opened the image just after the time limit. No caller gets this
            // image and drops it, so tell the keeper to close it.
            let _ = keeper.send(Message::Close);
            Err(error::stuck(name))
        })?;
        let image =
            Image { name: name.clone(), library, handle, facts, size, keeper, _used: Used::new() };
        let image = Arc::new(image);
        if image.facts.features & EXCLUSIVE_LOCK != 0 && image.facts.is_writable {
            tracing::info!(
                "rbd:{name} has the feature exclusive-lock: only one target can write it at full \
                 speed"
            );
        }
        let mut images = images();
        images.retain(|_, image| image.strong_count() > 0);
        images.insert(name.clone(), Arc::downgrade(&image));
        Ok(image)
    }

    /// Returns the name with which the image was opened.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the image's current capacity in bytes.
    pub fn bytes(&self) -> u64 {
        self.size.bytes.load(Ordering::Acquire)
    }

    /// Whether this client may write the image. If so, it is not a snapshot, and the cluster allows
    /// writes.
    pub fn is_writable(&self) -> bool {
        self.facts.is_writable
    }

    pub(crate) fn stripe_unit_bytes(&self) -> u64 {
        self.facts.stripe_unit_bytes
    }

    pub(crate) fn changes(&self) -> &Changes {
        &self.size.changes
    }

    pub(crate) fn library(&self) -> &'static Functions {
        self.library
    }

    pub(crate) fn handle(&self) -> ImageHandle {
        self.handle.0
    }
}

impl Drop for Image {
    /// Lets the keeper thread close the image. This code may run on one of librbd's own threads,
    /// where closing the image would deadlock.
    fn drop(&mut self) {
        // Ignore a failed send: the keeper thread has then ended, and has closed the image.
        let _ = self.keeper.send(Message::Close);
    }
}

type Told = Sender<Result<(Handle, Facts), OpenError>>;

/// The main function of the keeper thread. Opens the image, updates its size on request, and closes
/// it.
fn keep(
    library: &'static Functions,
    name: &Name,
    size: &SharedSize,
    sender: Sender<Message>,
    messages: &Receiver<Message>,
    tell: &Told,
) {
    let _alive = Keeper::new();
    let mut open = Open::new(library);
    let facts = match open.all(name, size) {
        Ok(facts) => facts,
        // Ignore a failed send, because the caller of `open` may have timed out.
        Err(error) => return drop(tell.send(Err(error))),
    };
    if facts.is_writable {
        open.watch(sender);
    } else {
        drop(sender);
    }
    if tell.send(Ok((Handle(open.image), facts))).is_err() {
        return;
    }
    // Query the size once more, because the watch does not report changes that happened before it
    // started.
    open.look(size);
    while let Ok(Message::Look) = messages.recv() {
        open.look(size);
    }
}

/// The objects that librbd has created for an image. The drop releases them in the right order.
struct Open {
    library: &'static Functions,
    cluster: Cluster,
    pool: IoContext,
    image: ImageHandle,
    watch: Option<(u64, Box<Sender<Message>>)>,
}

fn text(text: &str) -> CString {
    CString::new(text).expect("names have no zero byte")
}

/// Converts the result of a function. A result below zero is a negated error number.
fn checked(code: c_int) -> Result<(), i32> {
    if code < 0 { Err(-code) } else { Ok(()) }
}

/// librbd calls this function after a change of the image. The keeper then queries the size. A
/// query on this thread could deadlock.
unsafe extern "C" fn updated(keeper: *mut c_void) {
    // SAFETY: the sender lives until the watch has ended.
    let keeper = unsafe { &*keeper.cast::<Sender<Message>>() };
    let _ = keeper.send(Message::Look);
}

impl Open {
    fn new(library: &'static Functions) -> Open {
        let null = std::ptr::null_mut();
        Open { library, cluster: null, pool: null, image: null, watch: None }
    }

    fn all(&mut self, name: &Name, size: &SharedSize) -> Result<Facts, OpenError> {
        self.connect(name)?;
        self.pool(name).map_err(|number| error::pool(name, number))?;
        let is_writable = self.image(name).map_err(|number| error::opened(name, number))?;
        let facts = self.facts(name, is_writable).map_err(|number| error::opened(name, number))?;
        if self.is_cached().map_err(|number| error::opened(name, number))? {
            return Err(error::cached(name));
        }
        let bytes = self.bytes().map_err(|number| error::opened(name, number))?;
        size.bytes.store(bytes, Ordering::Release);
        Ok(facts)
    }

    fn connect(&mut self, name: &Name) -> Result<(), OpenError> {
        let user = text(name.user());
        let conf = name.conf.as_deref().map(text);
        let conf = conf.as_ref().map_or(std::ptr::null(), |conf| conf.as_ptr());
        let configuration = |number| error::configuration(name, number);
        // SAFETY: the strings live until the calls return, and the cluster handle until its
        // shutdown.
        unsafe {
            checked((self.library.rados_create)(&raw mut self.cluster, user.as_ptr()))
                .map_err(|number| error::connect(name, number))?;
            checked((self.library.rados_conf_read_file)(self.cluster, conf))
                .map_err(configuration)?;
            checked((self.library.rados_conf_parse_env)(self.cluster, std::ptr::null()))
                .map_err(configuration)?;
            let seconds = limits::CONNECT_SECONDS.to_string();
            self.set("client_mount_timeout", &seconds).map_err(configuration)?;
            // Disable the cache: other processes may write the image, and a completed write must be
            // durable.
            self.set("rbd_cache", "false").map_err(configuration)?;
            checked((self.library.rados_connect)(self.cluster))
                .map_err(|number| error::connect(name, number))
        }
    }

    fn set(&self, option: &str, value: &str) -> Result<(), i32> {
        let (option, value) = (text(option), text(value));
        // SAFETY: the strings live until the call returns.
        let set =
            unsafe { (self.library.rados_conf_set)(self.cluster, option.as_ptr(), value.as_ptr()) };
        checked(set)
    }

    fn pool(&mut self, name: &Name) -> Result<(), i32> {
        let pool = text(&name.pool);
        // SAFETY: the strings live until the call returns.
        unsafe {
            checked((self.library.rados_ioctx_create)(
                self.cluster,
                pool.as_ptr(),
                &raw mut self.pool,
            ))?;
            if let Some(namespace) = &name.namespace {
                (self.library.rados_ioctx_set_namespace)(self.pool, text(namespace).as_ptr());
            }
        }
        Ok(())
    }

    /// Opens the image, with `rbd_open_read_only` if the client may only read the image or it is a
    /// snapshot. Returns `true` if the image is writable. Snapshots are not writable.
    fn image(&mut self, name: &Name) -> Result<bool, i32> {
        let (image, snapshot) = (text(&name.image), name.snapshot.as_deref().map(text));
        if let Some(snapshot) = snapshot {
            return self.open_with(self.library.rbd_open_read_only, &image, snapshot.as_ptr());
        }
        match self.open_with(self.library.rbd_open, &image, std::ptr::null()) {
            Err(EPERM | EACCES | EROFS) => {
                let read = self.library.rbd_open_read_only;
                self.open_with(read, &image, std::ptr::null())
            }
            opened => opened.map(|_| true),
        }
    }

    fn open_with(
        &mut self,
        open: unsafe extern "C" fn(
            IoContext,
            *const c_char,
            *mut ImageHandle,
            *const c_char,
        ) -> c_int,
        image: &CString,
        snapshot: *const c_char,
    ) -> Result<bool, i32> {
        // SAFETY: the strings live until the call returns, and the pool handle until the image is
        // closed.
        let code = unsafe { open(self.pool, image.as_ptr(), &raw mut self.image, snapshot) };
        checked(code).map(|()| false)
    }

    fn facts(&self, name: &Name, is_writable: bool) -> Result<Facts, i32> {
        let (mut stripe_unit_bytes, mut features) = (0, 0);
        let (mut fsid, mut id): ([c_char; 64], [c_char; 64]) = ([0; 64], [0; 64]);
        // SAFETY: the results have the types and the lengths that the calls expect.
        let pool = unsafe {
            let library = self.library;
            checked((library.rbd_get_stripe_unit)(self.image, &raw mut stripe_unit_bytes))?;
            checked((library.rbd_get_features)(self.image, &raw mut features))?;
            checked((library.rados_cluster_fsid)(self.cluster, fsid.as_mut_ptr(), fsid.len()))?;
            checked((library.rbd_get_id)(self.image, id.as_mut_ptr(), id.len()))?;
            (library.rados_ioctx_get_id)(self.pool)
        };
        let (fsid, id) = (shown(&fsid), shown(&id));
        let (space, snapshot) = (&name.namespace, &name.snapshot);
        let text = format!("rbd\n{fsid}\n{pool}\n{space:?}\n{id}\n{snapshot:?}");
        let identity = Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes());
        Ok(Facts { is_writable, stripe_unit_bytes, features, identity })
    }

    /// Whether librbd caches although this crate has disabled its cache. The cluster may store
    /// settings for the image and its pool, which override the settings of this crate.
    fn is_cached(&self) -> Result<bool, i32> {
        let none = ConfigOption { name: std::ptr::null(), value: std::ptr::null(), source: 0 };
        let mut options = Vec::new();
        loop {
            let mut count =
                c_int::try_from(options.len()).expect("the number of options fits a c_int");
            // SAFETY: the vector has room for `count` entries.
            let listed = unsafe {
                let list = self.library.rbd_config_image_list;
                list(self.image, options.as_mut_ptr(), &raw mut count)
            };
            match checked(listed) {
                // The call has set `count` to the number of entries.
                Err(ERANGE) if count as usize > options.len() => {
                    options.resize(count as usize, none);
                    continue;
                }
                listed => listed?,
            }
            let listed = &options[..count as usize];
            // SAFETY: librbd has filled these entries. It frees their strings only in the cleanup
            // below.
            let is_on = unsafe {
                let word = |text| CStr::from_ptr(text).to_bytes();
                let mut all = listed.iter();
                all.any(|it| word(it.name) == b"rbd_cache" && word(it.value) != b"false")
            };
            // SAFETY: librbd filled these entries, and no code uses their strings any more.
            unsafe { (self.library.rbd_config_image_list_cleanup)(options.as_mut_ptr(), count) };
            return Ok(is_on);
        }
    }

    fn bytes(&self) -> Result<u64, i32> {
        let mut bytes = 0;
        // SAFETY: the image is open.
        checked(unsafe { (self.library.rbd_get_size)(self.image, &raw mut bytes) })?;
        Ok(bytes.min(limits::IMAGE_BYTES))
    }

    fn watch(&mut self, sender: Sender<Message>) {
        let sender = Box::new(sender);
        let (mut watch, to) = (0, std::ptr::from_ref(&*sender).cast_mut().cast());
        // SAFETY: the sender is dropped after the watch has ended.
        let code =
            unsafe { (self.library.rbd_update_watch)(self.image, &raw mut watch, updated, to) };
        match checked(code) {
            Ok(()) => self.watch = Some((watch, sender)),
            Err(number) => {
                tracing::warn!("farblock will not notice when the Ceph image grows: error {number}")
            }
        }
    }

    fn look(&self, size: &SharedSize) {
        let Ok(bytes) = self.bytes() else { return };
        if size.bytes.swap(bytes, Ordering::AcqRel) != bytes {
            size.changes.tell(Change::Geometry);
        }
    }
}

/// Converts a text that ends with a zero byte.
fn shown(text: &[c_char]) -> String {
    text.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte as u8)).collect()
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: a matching call created each object, no operation is in flight, and every user of
        // the image has dropped it.
        unsafe {
            if let Some((watch, _)) = &self.watch {
                (self.library.rbd_update_unwatch)(self.image, *watch);
            }
            if !self.image.is_null() {
                (self.library.rbd_close)(self.image);
            }
            if !self.pool.is_null() {
                (self.library.rados_ioctx_destroy)(self.pool);
            }
            if !self.cluster.is_null() {
                (self.library.rados_shutdown)(self.cluster);
            }
        }
    }
}
