//! Requests other than SCSI commands: NOP-Out, text, task management and logout (RFC 7143, 11.5,
//! 11.10, 11.14, 11.18).

use super::active::OnEnd;
use super::conn::Conn;
use super::discovery;
use super::exchange::Reply;
use super::pdu::{
    Bhs, CONTINUE, FINAL, NO_TAG, RejectReason, TaskFunction, TaskResponse, nop_in, opcode, reject, response,
    sn_before,
};
use super::reply::put;
use super::session::{Managing, is_same};
use super::stats::IscsiTraffic;
use crate::net::buffers::ReplyBuf;
use crate::net::transport::Transport;
use std::sync::Arc;

/// What happens to the connection after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    /// The connection ends when every response has been sent.
    Close,
}

/// Serves one request whose turn has come. The thread of the connection and workers call it.
pub(super) fn serve(conn: &Arc<Conn>, bhs: &Bhs, data: &[u8], out: &mut ReplyBuf) -> Then {
    match bhs.opcode() {
        opcode::NOP_OUT => nop_out(conn, bhs, data, out),
        opcode::TEXT => text(conn, bhs, data, out),
        opcode::TASK_MANAGEMENT if conn.session.nexus.is_some() => {
            if let Some(managing) = begin(conn, bhs) {
                task_management(conn, bhs, managing);
            }
        }
        opcode::LOGOUT => return logout(conn, bhs, out),
        // A discovery session serves no such request (4.3). Its CmdSN counts anyway.
        _ => refuse(conn, bhs, RejectReason::ProtocolError, out),
    }
    Then::GoOn
}

fn refuse(conn: &Conn, bhs: &Bhs, reason: RejectReason, out: &mut ReplyBuf) {
    conn.count(&IscsiTraffic { rejects: 1, ..Default::default() });
    put(out, reject(reason), &bhs.0, conn.params.digests);
}

/// Answers a NOP-Out. The response has the data of the request, as much as fits into one PDU.
fn nop_out(conn: &Conn, bhs: &Bhs, data: &[u8], out: &mut ReplyBuf) {
    let shape = conn.shape();
    let n = data.len().min(shape.segment as usize);
    put(out, nop_in(bhs.lun(), bhs.itt(), NO_TAG), &data[..n], shape.digests);
}

fn text(conn: &Conn, bhs: &Bhs, data: &[u8], out: &mut ReplyBuf) {
    let shape = conn.shape();
    let limit = shape.segment as usize;
    let result = discovery::take(conn, bhs.u8(1) & CONTINUE != 0, (bhs.itt(), bhs.ttt()), data, limit);
    let (flags, ttt, data) = match result {
        Ok(Reply::Last(data)) => (FINAL, NO_TAG, data),
        Ok(Reply::Part(ttt, data)) => (CONTINUE, ttt, data),
        Ok(Reply::GoOn(ttt)) => (0, ttt, Vec::new()),
        Err(reason) => return refuse(conn, bhs, reason, out),
    };
    let mut answer = response(opcode::TEXT_RESPONSE, flags, bhs.itt());
    answer.put(8, &bhs.lun()).put_u32(20, ttt);
    put(out, answer, &data, shape.digests);
}

/// Reasons of a Logout Request (11.14.1).
const CLOSE_SESSION: u8 = 0;
const CLOSE_CONNECTION: u8 = 1;
const FOR_RECOVERY: u8 = 2;

/// Responses to a Logout Request (11.15.1).
const CLOSED: u8 = 0;
const NO_SUCH_CID: u8 = 1;
const RECOVERY_NOT_SUPPORTED: u8 = 2;

fn logout(conn: &Arc<Conn>, bhs: &Bhs, out: &mut ReplyBuf) -> Then {
    let session = &conn.session;
    let cid = bhs.u16(20);
    let own = cid == conn.cid;
    let (code, then) = match bhs.u8(1) & 0x7f {
        CLOSE_CONNECTION if own && session.conns().len() > 1 => {
            conn.log_out();
            (CLOSED, Then::Close)
        }
        reason if reason == CLOSE_SESSION || reason == CLOSE_CONNECTION && own => {
            close_session(conn, bhs);
            return Then::Close;
        }
        CLOSE_CONNECTION => match session.conn(cid) {
            Some(other) => {
                other.log_out();
                other.abort();
                (CLOSED, Then::GoOn)
            }
            None => (NO_SUCH_CID, Then::GoOn),
        },
        FOR_RECOVERY => (RECOVERY_NOT_SUPPORTED, Then::GoOn),
        _ => {
            refuse(conn, bhs, RejectReason::InvalidPduField, out);
            return Then::GoOn;
        }
    };
    put(out, logged_out(conn, bhs.itt(), code), &[], conn.params.digests);
    then
}

/// Closes the session. It aborts all commands and answers none of them. The logout response is sent
/// when the last write in progress has ended. After that nothing of this session changes the
/// medium.
fn close_session(conn: &Arc<Conn>, bhs: &Bhs) {
    let (own, answer) = (conn.clone(), logged_out(conn, bhs.itt(), CLOSED));
    let waiter = OnEnd::new(move || own.post(answer, &[]));
    conn.session.abort_tasks(|_, _| true, &waiter);
    for other in conn.session.conns().iter().filter(|other| !is_same(other, conn)) {
        other.log_out();
        other.abort();
    }
    conn.log_out();
}

fn logged_out(conn: &Conn, itt: u32, code: u8) -> Bhs {
    let mut answer = response(opcode::LOGOUT_RESPONSE, FINAL, itt);
    answer.0[2] = code;
    answer.put_u16(40, conn.session.params.time2wait).put_u16(42, 0);
    answer
}

/// Begins a task management function. If too many are in progress, the function is rejected and the
/// result is `None`.
pub(super) fn begin(conn: &Arc<Conn>, bhs: &Bhs) -> Option<Managing> {
    conn.count(&IscsiTraffic { task_management: 1, ..Default::default() });
    let managing = Managing::begin(&conn.session);
    if managing.is_none() {
        respond(conn, bhs.itt(), TaskResponse::Rejected);
    }
    managing
}

/// Carries out a task management function (11.5). The response is sent when the last task that it
/// aborts has ended. The function may wait for writes that were passed to the device.
pub(super) fn task_management(conn: &Arc<Conn>, bhs: &Bhs, managing: Managing) {
    let (session, lun) = (&conn.session, u64::from_be_bytes(bhs.lun()));
    let Some(nexus) = &session.nexus else {
        return;
    };
    let function = TaskFunction::from_wire(bhs.u8(1));
    let complete = |conn: &Arc<Conn>| {
        let (conn, itt) = (conn.clone(), bhs.itt());
        OnEnd::new(move || {
            respond(&conn, itt, TaskResponse::Complete);
            drop(managing);
        })
    };
    let code = match function {
        Some(TaskFunction::AbortTask) => {
            let waiter = complete(conn);
            let referenced = bhs.u32(20);
            if session.abort_tasks(|itt, l| itt == referenced && l == lun, &waiter) > 0 {
                return;
            }
            waiter.lock().disarm();
            abort_unseen(conn, bhs)
        }
        Some(TaskFunction::AbortTaskSet | TaskFunction::ClearTaskSet | TaskFunction::LunReset)
            if !nexus.has_lun(lun) =>
        {
            TaskResponse::NoLun
        }
        Some(TaskFunction::ClearTaskSet | TaskFunction::LunReset) if !nexus.may_disturb(lun) => {
            TaskResponse::AuthorizationFailed
        }
        Some(TaskFunction::TargetWarmReset) if !nexus.may_disturb_all() => TaskResponse::AuthorizationFailed,
        Some(TaskFunction::TargetColdReset) if !nexus.may_end_sessions() => TaskResponse::AuthorizationFailed,
        Some(TaskFunction::AbortTaskSet) => {
            let waiter = complete(conn);
            session.abort_tasks(|_, l| l == lun, &waiter);
            nexus.abort_task_set(lun);
            return;
        }
        Some(TaskFunction::ClearTaskSet) => {
            let waiter = complete(conn); // not answered before others' tasks are aborted too
            session.abort_tasks(|_, l| l == lun, &waiter);
            nexus.clear_task_set(lun);
            return;
        }
        Some(TaskFunction::LunReset) => {
            let waiter = complete(conn);
            session.abort_tasks(|_, l| l == lun, &waiter);
            nexus.reset_lu(lun);
            return;
        }
        Some(TaskFunction::TargetWarmReset) => {
            let waiter = complete(conn);
            session.abort_tasks(|_, _| true, &waiter);
            nexus.reset_target();
            return;
        }
        Some(TaskFunction::TargetColdReset) => return cold_reset(conn, bhs),
        Some(TaskFunction::TaskReassign) => TaskResponse::ReassignmentNotSupported,
        Some(TaskFunction::ClearAca) => TaskResponse::NotSupported,
        None => TaskResponse::Rejected,
    };
    respond(conn, bhs.itt(), code);
}

fn respond(conn: &Conn, itt: u32, code: TaskResponse) {
    let mut answer = response(opcode::TASK_MANAGEMENT_RESPONSE, FINAL, itt);
    answer.0[2] = code as u8;
    conn.post(answer, &[]);
}

/// Handles ABORT TASK for a task that is not registered. Its command has not been received yet, or
/// was already answered (11.5.1, 11.6.1).
fn abort_unseen(conn: &Conn, bhs: &Bhs) -> TaskResponse {
    let ref_cmd_sn = bhs.u32(32);
    let before = sn_before(ref_cmd_sn, bhs.cmd_sn());
    if before && conn.session.plug(ref_cmd_sn) { TaskResponse::Complete } else { TaskResponse::NoTask }
}

/// Resets the target as a warm reset does, and then ends all sessions of the target (11.5.1).
fn cold_reset(conn: &Arc<Conn>, bhs: &Bhs) {
    let (own, itt) = (conn.clone(), bhs.itt());
    let waiter = OnEnd::new(move || {
        respond(&own, itt, TaskResponse::Complete);
        for session in own.session.all_of_target() {
            let is_own = Arc::ptr_eq(&session, &own.session);
            for conn in session.conns() {
                if is_own { conn.record().transport.close() } else { conn.abort() }
            }
        }
    });
    conn.session.abort_tasks(|_, _| true, &waiter);
    if let Some(nexus) = &conn.session.nexus {
        nexus.reset_target();
    }
}
