/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Made by cbindgen from crates/tools/capi: change it there, then `make header`. */

#ifndef FARBLOCK_H
#define FARBLOCK_H

#include <stddef.h>
#include <stdint.h>

// A property of a disk: the disk refuses writes and other changes.
#define FB_READ_ONLY 1

// A property of a disk: a crash may lose written data that no flush followed.
#define FB_VOLATILE_CACHE 2

// A property of a disk: deallocating frees space.
#define FB_DEALLOCATE 4

// A flag for writes and zeroing: the data is durable when the operation completes.
#define FB_DURABLE 1

// A flag for zeroing: the space stays allocated.
#define FB_KEEP_ALLOCATED 2

// A value for the times in the options: no limit.
#define FB_FOREVER UINT32_MAX

// An option flag: protect every header by a CRC.
#define FB_HEADER_DIGEST 1

// An option flag: protect all data by a CRC.
#define FB_DATA_DIGEST 2

// The size in bytes of the text in `fb_path_info.error`, including its zero byte.
#define FB_ERROR_BYTES 256

// The maximum number of operations of a queue, including completed ones that `fb_poll` has not yet
// returned.
#define FB_QUEUE_OPERATIONS 65536

// The maximum number of disks of a queue.
#define FB_QUEUE_DISKS 1024

// The result of a call or an operation. New versions may add values: treat unknown values as
// failures.
enum fb_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Success.
  FB_STATUS_OK = 0,
  // An argument is invalid: it is null, unknown, or contradicts another argument.
  FB_STATUS_ARGUMENT = -1,
  // An offset or a length is not a multiple of the block size.
  FB_STATUS_ALIGNMENT = -2,
  // The range is outside of the disk.
  FB_STATUS_RANGE = -3,
  // The operation is too large: split it.
  FB_STATUS_TOO_LARGE = -4,
  // The library could not connect to the target.
  FB_STATUS_CONNECT = -5,
  // The connection is lost. A write in flight may or may not have been executed.
  FB_STATUS_LOST = -6,
  // The disk is read-only.
  FB_STATUS_READ_ONLY = -7,
  // No space is left on the disk's storage.
  FB_STATUS_NO_SPACE = -8,
  // The disk could not read the data.
  FB_STATUS_READ = -9,
  // The disk could not write the data (or, for a flush, earlier data).
  FB_STATUS_WRITE = -10,
  // The disk, or this version of the library, does not support the operation.
  FB_STATUS_UNSUPPORTED = -11,
  // The library or the target cancelled the operation, for example because `fb_options.waiting`
  // requested this.
  FB_STATUS_ABORTED = -12,
  // The system is out of memory, descriptors or queues.
  FB_STATUS_RESOURCES = -13,
  // A thread used a queue that another thread opened, or a forked process used a handle of its
  // parent.
  FB_STATUS_THREAD = -14,
  // Too many operations are in flight on the queue: call `fb_poll` first.
  FB_STATUS_BUSY = -15,
  // The library has a bug; please report the message.
  FB_STATUS_BUG = -16,
  // A reservation of another host forbids the operation.
  FB_STATUS_CONFLICT = -17,
  // The controller or the disk denies access to this host.
  FB_STATUS_DENIED = -18,
  // The disk is not ready yet; another attempt may succeed.
  FB_STATUS_NOT_READY = -19,
  // The write is longer than the disk's limit for atomic writes: split it.
  FB_STATUS_ATOMIC = -20,
  // The controller has no such subsystem, or the subsystem has no such namespace.
  FB_STATUS_MISSING = -21,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_status fb_status;
#else
typedef int32_t fb_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The command of an operation: a value of `fb_op.kind`.
enum fb_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Reads into `data`.
  FB_KIND_READ = 1,
  // Writes from `data`. The flag FB_DURABLE is possible.
  FB_KIND_WRITE = 2,
  // Makes all earlier completed writes durable. The operation has no range.
  FB_KIND_FLUSH = 3,
  // Makes the range read as zeroes. The flags FB_DURABLE and FB_KEEP_ALLOCATED are possible.
  FB_KIND_WRITE_ZEROES = 4,
  // Tells the disk that the caller no longer needs the range.
  FB_KIND_DEALLOCATE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_kind fb_kind;
#else
typedef uint32_t fb_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The event loop that moves the data: a value of `fb_options.engine`.
enum fb_engine
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // io_uring if it works, otherwise the portable event loop.
  FB_ENGINE_AUTO = 0,
  // Linux io_uring.
  FB_ENGINE_URING = 1,
  // Readiness notifications: epoll and similar calls.
  FB_ENGINE_PORTABLE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_engine fb_engine;
#else
typedef uint32_t fb_engine;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The choice of a path for an operation, if there are several: a value of `fb_options.policy`. The
// Linux kernel uses the same names. Paths that the target reports as optimized (ANA) always come
// first.
enum fb_policy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The first usable path in the order of the URLs.
  FB_POLICY_NUMA = 0,
  // The usable paths in turn.
  FB_POLICY_ROUND_ROBIN = 1,
  // The path with the fewest operations of the same queue in flight.
  FB_POLICY_QUEUE_DEPTH = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_policy fb_policy;
#else
typedef uint32_t fb_policy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The processor time that a waiting thread may use to reduce latency: a value of
// `fb_options.spin`. The names are the same as in farblock's --spin.
enum fb_spin
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A waiting thread polls for up to 200 us before it sleeps, if that makes the load faster.
  FB_SPIN_BALANCED = 0,
  // A waiting thread sleeps at once.
  FB_SPIN_EFFICIENT = 1,
  // A waiting thread polls while there is I/O, and for a millisecond after it. Under load this
  // takes up to one processor.
  FB_SPIN_LATENCY = 2,
  // A waiting thread never sleeps.
  FB_SPIN_ALWAYS = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_spin fb_spin;
#else
typedef uint32_t fb_spin;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The state of a disk as a whole: a value of `fb_info.state`.
enum fb_disk_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Every path is connected.
  FB_DISK_STATE_LIVE = 1,
  // Some paths are connected, and some are not.
  FB_DISK_STATE_DEGRADED = 2,
  // No path is connected, and operations wait.
  FB_DISK_STATE_WAITING = 3,
  // The library has given up every path, and operations fail.
  FB_DISK_STATE_DEAD = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_disk_state fb_disk_state;
#else
typedef uint32_t fb_disk_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The state of a path: a value of `fb_path_info.state`.
enum fb_path_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The path has never been connected.
  FB_PATH_STATE_CONNECTING = 1,
  // The path is connected.
  FB_PATH_STATE_LIVE = 2,
  // The connection of the path was lost, and the library is reconnecting.
  FB_PATH_STATE_RECONNECTING = 3,
  // The library has given up the path.
  FB_PATH_STATE_DEAD = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_path_state fb_path_state;
#else
typedef uint32_t fb_path_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The answer of a discovery service.
typedef struct fb_discovery fb_discovery;

// A connected namespace, over one path or several paths. Several threads may use a disk at the
// same time. The disk outlives its connections: the library reconnects lost connections, and
// operations wait meanwhile.
typedef struct fb_disk fb_disk;

// Keeps many operations in flight, on one disk or several disks, without threads or copies. Only
// the thread that opened a queue may use it.
typedef struct fb_queue fb_queue;

// How to connect, and how to recover a lost connection. Set all fields to zero, then `size` to
// `sizeof(fb_options)`, and then the fields that you need. Zero is the default of each field;
// comments give the values of the defaults in brackets.
typedef struct fb_options {
  // Set this to `sizeof(fb_options)`. The library then knows your version of the structure.
  size_t size;
  // The host NQN. Null: the NQN of this machine.
  const char *hostnqn;
  // The host identifier (a UUID). Null: the identifier of this machine.
  const char *hostid;
  // The time limit of each step of connecting, in milliseconds (5000).
  uint32_t connect_timeout_ms;
  // The time limit of an operation, in milliseconds. After it, the library drops the connection
  // and sends the operation over another connection (30000; or FB_FOREVER).
  uint32_t io_timeout_ms;
  // The library and the target each drop the connection after this many milliseconds without a
  // message (5000; or FB_FOREVER).
  uint32_t keep_alive_ms;
  // Any of FB_HEADER_DIGEST, FB_DATA_DIGEST.
  uint32_t flags;
  // The event loop: an `fb_engine`.
  uint32_t engine;
  // The maximum number of commands in flight per queue (128). The controller may allow fewer.
  uint16_t queue_depth;
  // The maximum number of open queues (64). All blocking calls together use one more queue.
  uint16_t queues;
  // The longest pause between two attempts to reconnect, in milliseconds (10000). The library
  // makes the first attempt at once.
  uint32_t reconnect_delay_ms;
  // The library gives up a path that was lost for this many milliseconds. When no path remains,
  // the disk is dead (600000; or FB_FOREVER).
  uint32_t ctrl_loss_timeout_ms;
  // Operations fail when no path was usable for this many milliseconds. The library continues to
  // reconnect meanwhile (FB_FOREVER: operations wait until the disk is dead).
  uint32_t fast_io_fail_timeout_ms;
  // A silent path counts as lost after this many milliseconds, if this is shorter than
  // `keep_alive_ms` (600 with several paths, otherwise unused).
  uint32_t path_timeout_ms;
  // The wait, in milliseconds, before the library repeats a write that was lost with its
  // controller. The library waits only at a target where no other controller can reset the lost
  // one (Linux kernel, SPDK). Reads never wait.
  //
  // The default, 0, is two or three times `keep_alive_ms` plus the controller's own time. By
  // then, as NVMe Base 2.1 requires, the controller executes no more commands. With a shorter
  // wait, a write that is stuck in such a target for longer can undo later writes. 1 means
  // practically no wait.
  uint32_t quiesce_ms;
  // The choice among several paths: an `fb_policy`.
  uint32_t policy;
  // The time for which `fb_connect` retries while the target is not reachable, in milliseconds
  // (0: `fb_connect` makes one attempt; or FB_FOREVER).
  uint32_t connect_wait_ms;
  // A function that a waiting blocking call calls ten times a second, in the thread of the call,
  // so that a program can react to signals. Null: calls wait. The function returns 0 to
  // continue, or another value to end the call with FB_STATUS_ABORTED.
  //
  // An operation at a silent target ends when the library drops its connection
  // (`keep_alive_ms`). A write that was lost with its connection ends when the target is
  // reachable again or given up (`ctrl_loss_timeout_ms`). The library may call the function
  // until `fb_disconnect`.
  int32_t (*waiting)(void *user);
  // The argument of `waiting`.
  void *waiting_user;
  // The use of processor time: an `fb_spin`.
  uint32_t spin;
  // Must be zero.
  uint32_t reserved;
} fb_options;

// A discovery entry: a subsystem or another service. Set `size` to `sizeof(fb_entry)` before the
// call.
typedef struct fb_entry {
  // Set this to `sizeof(fb_entry)`. The library then knows your version of the structure.
  size_t size;
  // The URL for fb_connect, without a namespace. Null if fb_connect cannot use the entry. The
  // URL is printable ASCII. The other texts come from the remote side and may have any
  // characters. All texts of the entry are valid until fb_discovery_free.
  const char *url;
  // The subsystem's NQN.
  const char *nqn;
  // The entry's address (TRADDR).
  const char *address;
  // The entry's port (TRSVCID).
  const char *service;
  // The entry's type (SUBTYPE: 1 another discovery service, 2 a subsystem, 3 this service).
  uint32_t kind;
  // The entry's transport (TRTYPE: 1 RDMA, 2 Fibre Channel, 3 TCP).
  uint32_t transport;
} fb_entry;

// The properties of a disk. Set `size` to `sizeof(fb_info)` before the call.
typedef struct fb_info {
  // Set this to `sizeof(fb_info)`. The library then knows your version of the structure.
  size_t size;
  // The capacity in bytes.
  uint64_t capacity_bytes;
  // The capacity in blocks.
  uint64_t blocks;
  // Operations that do not cross a multiple of this many bytes are fastest. 0: no preference.
  uint64_t optimal_bytes;
  // Writes in aligned multiples of this many bytes are fastest. 0: no preference.
  uint64_t preferred_write_bytes;
  // A description for users, in one line. Valid until fb_disconnect.
  const char *description;
  // The block size in bytes.
  uint32_t block_size;
  // Any of FB_READ_ONLY, FB_VOLATILE_CACHE, FB_DEALLOCATE.
  uint32_t flags;
  // The namespace's identifier.
  uint32_t namespace_id;
  // The maximum number of open queues, without the queue of the blocking calls.
  uint16_t queues;
  // The maximum number of commands in flight per queue. Further commands wait.
  uint16_t queue_depth;
  // The number of changes to any of these fields, or to the state of a path, so far.
  uint64_t changes;
  // The state of the disk: an `fb_disk_state`.
  uint32_t state;
  // The number of paths; `fb_describe_path` describes each of them.
  uint16_t paths;
  // The number of connected paths.
  uint16_t live_paths;
} fb_info;

// Describes a path. Set `size` to `sizeof(fb_path_info)` before the call.
typedef struct fb_path_info {
  // Set this to `sizeof(fb_path_info)`. The library then knows your version of the structure.
  size_t size;
  // The path's URL. Valid until fb_disconnect.
  const char *url;
  // The time for which the path has been in this state, in milliseconds.
  uint64_t since_ms;
  // The number of times that the library has reconnected the path.
  uint64_t reconnects;
  // The state of the path: an `fb_path_state`.
  uint32_t state;
  // The path's access to the namespace (ANA: 1 optimized, 2 non-optimized, 3 inaccessible, 4
  // persistent loss, 15 change); 0 if the path is not connected.
  uint32_t access;
  // The reason why the path was last lost or could not be connected, in UTF-8. Empty if there
  // was no error.
  char error[FB_ERROR_BYTES];
} fb_path_info;

// An operation to submit. Set unused fields to zero.
typedef struct fb_op {
  // A value of the caller, which the completion returns.
  void *user;
  // For reads and writes: memory of `length` bytes at any address. The operation owns this
  // memory until it completes. Until then, do not change, free or read it (the caller may read
  // the data of a write).
  void *data;
  // The start of the range, in bytes: a multiple of the block size.
  uint64_t offset;
  // The length of the range, in bytes: a multiple of the block size, of less than 2^32 blocks.
  uint64_t length;
  // The command: an `fb_kind`.
  uint32_t kind;
  // The flags FB_DURABLE and FB_KEEP_ALLOCATED.
  uint32_t flags;
  // The number of one of the queue's disks; 0 for the disk with which the queue was opened.
  uint32_t disk;
  // Must be zero.
  uint32_t reserved;
} fb_op;

// A completed operation.
typedef struct fb_completion {
  // `fb_op.user` of the operation.
  void *user;
  // The result of the operation.
  fb_status status;
  // `fb_op.disk` of the operation.
  uint32_t disk;
} fb_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Asks the discovery service at `address`, a `host` or `host:port`, for its entries. The prefix
// `rdma:` selects NVMe/RDMA. Without a port, the call tries port 8009 and then port 4420.
// `options` may be null; its options for paths have no effect here.
//
// # Safety
// Each pointer must be null or valid: `address` for a text, `options` for options, `discovery` for
// the result.
fb_status fb_discover(const char *address,
                      const struct fb_options *options,
                      struct fb_discovery **discovery);

// Writes the entry with this `index`, which counts from 0. Returns FB_STATUS_RANGE if there is no
// such entry.
//
// # Safety
// Each pointer must be null or valid: `discovery` for a discovery, `entry` for at least `size`
// bytes.
fb_status fb_discovery_entry(const struct fb_discovery *discovery,
                             uint32_t index,
                             struct fb_entry *entry);

// Frees a discovery. Does nothing if `discovery` is null.
//
// # Safety
// `discovery` must be null, or a discovery that no call uses any more.
void fb_discovery_free(struct fb_discovery *discovery);

// Connects to the disk at a URL: `nvme+tcp://host:4420/nqn...?ns=1`. Several URLs, separated by
// blanks, are several paths to one namespace. A URL may omit the namespace if the subsystem has
// only one. `options` may be null.
//
// Waits until one path is connected, for as long as the options allow. From then on, the library
// reconnects lost connections, and operations use another path or wait. Operations fail with
// FB_STATUS_LOST when the option `ctrl_loss_timeout_ms` or `fast_io_fail_timeout_ms` has passed.
// Reconnecting never loses an operation, never executes it twice, and never executes a write late.
//
// # Safety
// Each pointer must be null or valid: `url` for a text, `options` for options, `disk` for the
// result.
fb_status fb_connect(const char *url, const struct fb_options *options, struct fb_disk **disk);

// Releases a disk. Does nothing if `disk` is null. The disk's queues keep working until the caller
// closes them. No other call may be using the disk. In a forked process this call does nothing.
//
// # Safety
// `disk` must be null, or a disk that no call uses any more.
void fb_disconnect(struct fb_disk *disk);

// Describes the current state of a disk. The size of a disk may change while it is connected.
//
// # Safety
// Each pointer must be null or valid: `disk` for a disk, `info` for at least `size` bytes.
fb_status fb_describe(const struct fb_disk *disk, struct fb_info *info);

// Describes one path of a disk. `index` counts the URLs from 0, and must be less than
// `fb_info.paths`.
//
// # Safety
// Each pointer must be null or valid: `disk` for a disk, `info` for at least `size` bytes.
fb_status fb_describe_path(const struct fb_disk *disk, uint32_t index, struct fb_path_info *info);

// Reads `length` bytes at `offset` into `data`. The range may have any number of whole blocks.
// Returns when the data has arrived. The library splits a large transfer into parts; if one part
// fails, the later parts do not start.
//
// # Safety
// `disk` must be null or valid. `data` must have `length` bytes that no other thread uses during
// the call.
fb_status fb_read(const struct fb_disk *disk, void *data, uint64_t offset, uint64_t length);

// Writes `length` bytes of `data` at `offset`. `flags` is 0 or FB_DURABLE. Otherwise works like
// `fb_read`.
//
// # Safety
// `disk` must be null or valid. `data` must have `length` bytes that no thread changes during the
// call.
fb_status fb_write(const struct fb_disk *disk,
                   const void *data,
                   uint64_t offset,
                   uint64_t length,
                   uint32_t flags);

// Makes all earlier completed writes durable.
//
// # Safety
// `disk` must be null or valid.
fb_status fb_flush(const struct fb_disk *disk);

// Makes a range of whole blocks read as zeroes, without transferring data. `flags` may have
// FB_DURABLE and FB_KEEP_ALLOCATED.
//
// # Safety
// `disk` must be null or valid.
fb_status fb_write_zeroes(const struct fb_disk *disk,
                          uint64_t offset,
                          uint64_t length,
                          uint32_t flags);

// Tells the disk that the caller no longer needs a range of whole blocks. The range then reads as
// zeroes or as before. This is a hint, which the disk may ignore.
//
// # Safety
// `disk` must be null or valid.
fb_status fb_deallocate(const struct fb_disk *disk, uint64_t offset, uint64_t length);

// Opens a queue to a disk, with the queue's own connection over each path. This call does not wait
// for the connections. Operations wait for them, and fail with FB_STATUS_RESOURCES if all queues
// of the disk are in use. The queue keeps working after the disk is released.
//
// # Safety
// Each pointer must be null or valid: `disk` for a disk, `queue` for the result.
fb_status fb_queue_open(const struct fb_disk *disk, struct fb_queue **queue);

// Adds a disk to a queue, so that one `fb_poll` waits for several disks. `index` receives the
// disk's number for `fb_op.disk`: 1 for the second disk, and so on.
//
// # Safety
// Each pointer must be null or valid: `queue` for a queue, `disk` for a disk, `index` for the
// result.
fb_status fb_queue_add(struct fb_queue *queue, const struct fb_disk *disk, uint32_t *index);

// Closes a queue. Does nothing if `queue` is null, or in a forked process. Only the thread that
// opened the queue may close it.
//
// The call drops operations that have not started, and waits for the started ones. So no write of
// the queue executes after the call and undoes a later write. The call does not report the results
// of these operations.
//
// If the started operations do not end within 30 seconds, because the target is unreachable, the
// call returns FB_STATUS_LOST. A write may then still be executed, once. The queue is closed in
// any case, and the memory of its operations belongs to the caller again. If the kernel does not
// release that memory, the library aborts the process (SIGABRT).
//
// # Safety
// `queue` must be null, or a queue that no call uses any more.
fb_status fb_queue_close(struct fb_queue *queue);

// Submits an operation. The operation starts at the next `fb_poll` at the latest, so that the
// library can send several operations together. If this call fails, it has submitted nothing.
//
// # Safety
// Each pointer must be null or valid: `queue` for a queue, `op` for an operation. The operation's
// `data` must have `length` bytes.
fb_status fb_submit(struct fb_queue *queue, const struct fb_op *op);

// Starts the submitted operations, and waits until at least `min` operations have completed or
// `timeout_us` microseconds have passed (negative: no limit). Writes up to `max` completions.
// Returns their number, or a negative `fb_status`. If `min` is 0, the call does not wait. If fewer
// than `min` operations are in flight, it waits only for these.
//
// # Safety
// `queue` must be null or valid. `completions` must have room for `max` completions; it may be
// null if `max` is 0.
int32_t fb_poll(struct fb_queue *queue,
                struct fb_completion *completions,
                uint32_t min,
                uint32_t max,
                int64_t timeout_us);

// Describes a status in plain words. The text stays valid.
const char *fb_status_text(int32_t status);

// The errno that is closest to a status (0 for success), for programs that need an errno.
int fb_status_errno(int32_t status);

// Describes the last failed call in this thread by one sentence, in UTF-8. The text is valid until
// the next failed call in this thread. It is empty before the first failed call.
const char *fb_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FARBLOCK_H */
