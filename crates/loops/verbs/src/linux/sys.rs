//! The structures of `infiniband/verbs.h` and `rdma/rdma_cma.h` (rdma-core) that this crate uses.
//!
//! Structures marked `whole` have their full size. The library allocates all others, which may have
//! more fields, and this crate uses only pointers to them. `layout.rs` compares every offset with
//! the C headers.

use libc::{c_char, c_int, c_uint, c_void, size_t, sockaddr_storage};

/// A field of a structure, to compare this file with the C headers.
#[cfg(test)]
pub(super) struct Field {
    /// The field's path in C.
    pub(super) path: &'static str,
    pub(super) offset: usize,
    /// The size in bytes. `None` for a field that covers several fields in C.
    pub(super) bytes: Option<usize>,
}

/// A structure's name in C, its fields, and its size if this crate allocates it.
#[cfg(test)]
pub(super) type Structure = (&'static str, Vec<Field>, Option<usize>);

macro_rules! structures {
    ($($(#[$meta:meta])* struct $name:ident $(($size:ident))? {
        $($field:ident: $ty:ty = $path:literal,)+
    })+) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(non_camel_case_types, dead_code)]
            pub(super) struct $name {
                $(pub(super) $field: $ty,)+
            }
        )+

        #[cfg(test)]
        pub(super) fn structures() -> Vec<Structure> {
            vec![$((
                stringify!($name),
                vec![$(Field {
                    path: $path,
                    offset: std::mem::offset_of!($name, $field),
                    bytes: (!stringify!($field).starts_with('_')).then_some(size_of::<$ty>()),
                },)+],
                // Structures marked `whole` have a size.
                [$(stringify!($size))?].iter().map(|_: &&str| size_of::<$name>()).next(),
            ),)+]
        }
    };
}

pub(super) type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(super) type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
pub(super) type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
pub(super) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub(super) type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

structures! {
    /// The C header's inline functions call the provider (the device's driver library) through
    /// `ops`.
    struct ibv_context {
        device: *mut c_void = "device",
        _compat_first: [*mut c_void; 11] = "ops._compat_query_device",
        poll_cq: Option<PollCq> = "ops.poll_cq",
        req_notify_cq: Option<ReqNotifyCq> = "ops.req_notify_cq",
        _compat_cq: [*mut c_void; 7] = "ops._compat_cq_event",
        post_srq_recv: Option<PostSrqRecv> = "ops.post_srq_recv",
        _compat_qp: [*mut c_void; 4] = "ops._compat_create_qp",
        post_send: Option<PostSend> = "ops.post_send",
        post_recv: Option<PostRecv> = "ops.post_recv",
    }

    struct ibv_pd {
        context: *mut ibv_context = "context",
    }

    struct ibv_mr {
        context: *mut ibv_context = "context",
        pd: *mut ibv_pd = "pd",
        addr: *mut c_void = "addr",
        length: size_t = "length",
        handle: u32 = "handle",
        lkey: u32 = "lkey",
        rkey: u32 = "rkey",
    }

    struct ibv_comp_channel {
        context: *mut ibv_context = "context",
        fd: c_int = "fd",
    }

    struct ibv_cq {
        context: *mut ibv_context = "context",
    }

    struct ibv_srq {
        context: *mut ibv_context = "context",
    }

    struct ibv_qp {
        context: *mut ibv_context = "context",
        qp_context: *mut c_void = "qp_context",
        pd: *mut ibv_pd = "pd",
        send_cq: *mut ibv_cq = "send_cq",
        recv_cq: *mut ibv_cq = "recv_cq",
        srq: *mut ibv_srq = "srq",
        handle: u32 = "handle",
        qp_num: u32 = "qp_num",
    }

    struct ibv_device_attr (whole) {
        fw_ver: [c_char; 64] = "fw_ver",
        node_guid: u64 = "node_guid",
        sys_image_guid: u64 = "sys_image_guid",
        max_mr_size: u64 = "max_mr_size",
        page_size_cap: u64 = "page_size_cap",
        _vendor: [u32; 3] = "vendor_id",
        max_qp: c_int = "max_qp",
        max_qp_wr: c_int = "max_qp_wr",
        device_cap_flags: c_uint = "device_cap_flags",
        max_sge: c_int = "max_sge",
        max_sge_rd: c_int = "max_sge_rd",
        max_cq: c_int = "max_cq",
        max_cqe: c_int = "max_cqe",
        max_mr: c_int = "max_mr",
        max_pd: c_int = "max_pd",
        max_qp_rd_atom: c_int = "max_qp_rd_atom",
        _max_rd_atom: [c_int; 2] = "max_ee_rd_atom",
        max_qp_init_rd_atom: c_int = "max_qp_init_rd_atom",
        _others: [c_int; 13] = "max_ee_init_rd_atom",
        max_srq: c_int = "max_srq",
        max_srq_wr: c_int = "max_srq_wr",
        max_srq_sge: c_int = "max_srq_sge",
        max_pkeys: u16 = "max_pkeys",
        local_ca_ack_delay: u8 = "local_ca_ack_delay",
        phys_port_cnt: u8 = "phys_port_cnt",
    }

    struct ibv_port_attr (whole) {
        state: c_uint = "state",
        max_mtu: c_uint = "max_mtu",
        active_mtu: c_uint = "active_mtu",
        gid_tbl_len: c_int = "gid_tbl_len",
        port_cap_flags: u32 = "port_cap_flags",
        max_msg_sz: u32 = "max_msg_sz",
        _counters: [u32; 2] = "bad_pkey_cntr",
        _lids: [u16; 3] = "pkey_tbl_len",
        _subnet: [u8; 8] = "lmc",
        link_layer: u8 = "link_layer",
        flags: u8 = "flags",
        port_cap_flags2: u16 = "port_cap_flags2",
    }

    struct ibv_srq_init_attr (whole) {
        srq_context: *mut c_void = "srq_context",
        max_wr: u32 = "attr.max_wr",
        max_sge: u32 = "attr.max_sge",
        srq_limit: u32 = "attr.srq_limit",
    }

    struct ibv_qp_init_attr (whole) {
        qp_context: *mut c_void = "qp_context",
        send_cq: *mut ibv_cq = "send_cq",
        recv_cq: *mut ibv_cq = "recv_cq",
        srq: *mut ibv_srq = "srq",
        max_send_wr: u32 = "cap.max_send_wr",
        max_recv_wr: u32 = "cap.max_recv_wr",
        max_send_sge: u32 = "cap.max_send_sge",
        max_recv_sge: u32 = "cap.max_recv_sge",
        max_inline_data: u32 = "cap.max_inline_data",
        qp_type: c_uint = "qp_type",
        sq_sig_all: c_int = "sq_sig_all",
    }

    struct ibv_sge (whole) {
        addr: u64 = "addr",
        length: u32 = "length",
        lkey: u32 = "lkey",
    }

    struct ibv_recv_wr (whole) {
        wr_id: u64 = "wr_id",
        next: *mut ibv_recv_wr = "next",
        sg_list: *mut ibv_sge = "sg_list",
        num_sge: c_int = "num_sge",
    }

    /// `_atomic` and `_bind` cover the rest of C unions.
    struct ibv_send_wr (whole) {
        wr_id: u64 = "wr_id",
        next: *mut ibv_send_wr = "next",
        sg_list: *mut ibv_sge = "sg_list",
        num_sge: c_int = "num_sge",
        opcode: c_uint = "opcode",
        send_flags: c_uint = "send_flags",
        invalidate_rkey: u32 = "invalidate_rkey",
        remote_addr: u64 = "wr.rdma.remote_addr",
        rkey: u32 = "wr.rdma.rkey",
        _atomic: [u64; 2] = "wr.atomic.swap",
        _xrc: u64 = "qp_type",
        _bind: [u64; 6] = "bind_mw",
    }

    struct ibv_wc (whole) {
        wr_id: u64 = "wr_id",
        status: c_uint = "status",
        opcode: c_uint = "opcode",
        vendor_err: u32 = "vendor_err",
        byte_len: u32 = "byte_len",
        invalidated_rkey: u32 = "invalidated_rkey",
        qp_num: u32 = "qp_num",
        src_qp: u32 = "src_qp",
        wc_flags: c_uint = "wc_flags",
        pkey_index: u16 = "pkey_index",
        slid: u16 = "slid",
        sl: u8 = "sl",
        dlid_path_bits: u8 = "dlid_path_bits",
    }

    struct rdma_event_channel {
        fd: c_int = "fd",
    }

    struct rdma_cm_id {
        verbs: *mut ibv_context = "verbs",
        channel: *mut rdma_event_channel = "channel",
        context: *mut c_void = "context",
        qp: *mut ibv_qp = "qp",
        src_addr: sockaddr_storage = "route.addr.src_storage",
        dst_addr: sockaddr_storage = "route.addr.dst_storage",
    }

    struct rdma_conn_param (whole) {
        private_data: *const c_void = "private_data",
        private_data_len: u8 = "private_data_len",
        responder_resources: u8 = "responder_resources",
        initiator_depth: u8 = "initiator_depth",
        flow_control: u8 = "flow_control",
        retry_count: u8 = "retry_count",
        rnr_retry_count: u8 = "rnr_retry_count",
        srq: u8 = "srq",
        qp_num: u32 = "qp_num",
    }

    struct rdma_cm_event {
        id: *mut rdma_cm_id = "id",
        listen_id: *mut rdma_cm_id = "listen_id",
        event: c_uint = "event",
        status: c_int = "status",
        conn: rdma_conn_param = "param.conn",
    }
}

macro_rules! codes {
    ($($name:ident = $value:expr;)+) => {
        $(pub(super) const $name: u32 = $value;)+

        #[cfg(test)]
        pub(super) fn codes() -> Vec<(&'static str, u32)> {
            vec![$((stringify!($name), $name),)+]
        }
    };
}

codes! {
    IBV_QPT_RC = 2;
    IBV_WR_RDMA_WRITE = 0;
    IBV_WR_SEND = 2;
    IBV_WR_RDMA_READ = 4;
    IBV_WR_SEND_WITH_INV = 9;
    IBV_SEND_FENCE = 1;
    IBV_SEND_SIGNALED = 2;
    IBV_SEND_INLINE = 8;
    IBV_WC_SEND = 0;
    IBV_WC_RDMA_WRITE = 1;
    IBV_WC_RDMA_READ = 2;
    IBV_WC_RECV = 128;
    IBV_WC_WITH_INV = 8;
    IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21;
    IBV_PORT_ACTIVE = 4;
    IBV_LINK_LAYER_ETHERNET = 2;
    RDMA_PS_TCP = 0x106;
    RDMA_OPTION_ID = 0;
    RDMA_OPTION_ID_AFONLY = 2;
    RDMA_CM_EVENT_ADDR_RESOLVED = 0;
    RDMA_CM_EVENT_ADDR_ERROR = 1;
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2;
    RDMA_CM_EVENT_ROUTE_ERROR = 3;
    RDMA_CM_EVENT_CONNECT_REQUEST = 4;
    RDMA_CM_EVENT_CONNECT_ERROR = 6;
    RDMA_CM_EVENT_UNREACHABLE = 7;
    RDMA_CM_EVENT_REJECTED = 8;
    RDMA_CM_EVENT_ESTABLISHED = 9;
    RDMA_CM_EVENT_DISCONNECTED = 10;
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11;
    RDMA_CM_EVENT_ADDR_CHANGE = 14;
    RDMA_CM_EVENT_TIMEWAIT_EXIT = 15;
}
