------------------------------- MODULE Fence -------------------------------
(* The fence of a database, and the commit guard beside it.                *)
(*                                                                         *)
(* NoStaleCommit: no holder commits after a newer holder has committed.    *)
(* SeesWork: each holder that commits has read the work of all that        *)
(* committed before.                                                       *)
(*                                                                         *)
(* There are no nodes and no clocks here.  A lease ends whenever it likes, *)
(* its holder never notices, and each step may be delayed for ever.  By    *)
(* default a second lease is even granted while the first is valid.        *)
(* README.md tells which function of the code does each action.            *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Holders,        \* sessions, each of which is granted the lock once
    Transactions,   \* so many transactions does each begin, at most
    Isolations,     \* a subset of {"read committed", "repeatable read"}
    Fenced,         \* the holders that call redlock_fence
    WorkFirst,      \* the holders that read before they call it
    Procedures,     \* the holders that run in redlock_run(fence => true), and commit there
    RollsBack,      \* such a procedure may roll back a transaction, and go on
    OneStatement,   \* the work is read by the statement that calls redlock_fence
    KeepsRowLock,   \* the row lock lasts until the end of the transaction
    TokensInOrder,  \* a later grant has a larger token
    Exclusive,      \* no lease is granted while another is valid
    CommitGuard,    \* PRE_COMMIT looks whether the lease is valid
    Pause,          \* time may pass between that and the commit
    Reset           \* the operator: "no", "update" or "delete" of the fence row

VARIABLES
    isolation,      \* of each holder's transactions
    pc,             \* where a holder is
    grant,          \* its place in the order of grants, 0: none yet
    token,          \* its fencing token
    valid,          \* whether its lease is valid
    begun,          \* so many transactions has it begun
    snapshot,       \* of its transaction: data and version of the fence row
    passed,         \* whether its transaction has passed the fence
    seen,           \* the data that its transaction has read
    row,            \* the committed fence row
    locker,         \* the holders whose transactions have the row lock
    data,           \* the protected data: a counter, which each transaction raises by 1
    commits,        \* the grants of the transactions that committed, in order
    resets

vars == <<isolation, pc, grant, token, valid, begun, snapshot, passed, seen, row, locker, data,
          commits, resets>>

None == 99
Nothing == [data |-> None, version |-> None]
Now == [data |-> data, version |-> row.version]
Granted == {h \in Holders : grant[h] > 0}
Max(S) == CHOOSE x \in S \cup {0} : \A y \in S : x >= y

Init ==
    /\ isolation \in [Holders -> Isolations]
    /\ pc = [h \in Holders |-> "idle"]
    /\ grant = [h \in Holders |-> 0]
    /\ token = [h \in Holders |-> 0]
    /\ valid = [h \in Holders |-> FALSE]
    /\ begun = [h \in Holders |-> 0]
    /\ snapshot = [h \in Holders |-> Nothing]
    /\ passed = [h \in Holders |-> FALSE]
    /\ seen = [h \in Holders |-> None]
    /\ row = [there |-> FALSE, token |-> 0, version |-> 0]
    /\ locker = {}
    /\ data = 0
    /\ commits = <<>>
    /\ resets = 0

(* The transaction takes its snapshot, which is that of all its statements *)
(* at REPEATABLE READ.  That may be before the lock is granted.            *)
Begin(h) ==
    /\ isolation[h] = "repeatable read"
    /\ pc[h] \in {"idle", "holds"}
    /\ snapshot[h] = Nothing
    /\ snapshot' = [snapshot EXCEPT ![h] = Now]
    /\ UNCHANGED <<isolation, pc, grant, token, valid, begun, passed, seen, row, locker, data,
                   commits, resets>>

Grant(h) ==
    /\ pc[h] = "idle"
    /\ Exclusive => \A g \in Holders : ~valid[g]
    /\ \E t \in 1 .. Cardinality(Holders) :
        /\ t \notin {token[g] : g \in Granted}
        /\ TokensInOrder => t = Max({token[g] : g \in Granted}) + 1
        /\ token' = [token EXCEPT ![h] = t]
    /\ grant' = [grant EXCEPT ![h] = Max({grant[g] : g \in Granted}) + 1]
    /\ valid' = [valid EXCEPT ![h] = TRUE]
    /\ pc' = [pc EXCEPT ![h] = "holds"]
    /\ UNCHANGED <<isolation, begun, snapshot, passed, seen, row, locker, data, commits, resets>>

(* The lease ends, by whatever clock.  The holder goes on. *)
EndLease(h) ==
    /\ valid[h]
    /\ valid' = [valid EXCEPT ![h] = FALSE]
    /\ UNCHANGED <<isolation, pc, grant, token, begun, snapshot, passed, seen, row, locker, data,
                   commits, resets>>

(* Whether this transaction passes the fence after its work: in a          *)
(* procedure each but the first does, as it commits.                       *)
Late(h) == h \in WorkFirst \/ (h \in Procedures /\ begun[h] > 0)
HasSnapshot(h) == isolation[h] = "repeatable read" => snapshot[h] # Nothing

(* The statement of redlock_fence begins.  It may wait for the row lock. *)
CallFence(h) ==
    /\ h \in Fenced
    /\ HasSnapshot(h)
    /\ pc[h] = IF Late(h) THEN "worked" ELSE "holds"
    /\ begun[h] < Transactions
    /\ pc' = [pc EXCEPT ![h] = "calls"]
    /\ snapshot' = IF isolation[h] = "read committed" THEN [snapshot EXCEPT ![h] = Now] ELSE snapshot
    /\ UNCHANGED <<isolation, grant, token, valid, begun, passed, seen, row, locker, data, commits,
                   resets>>

RowIsFree(h) == KeepsRowLock => locker \subseteq {h}
MayPass(h) ==
    row.there => /\ row.token <= token[h]
                 /\ isolation[h] = "repeatable read" => row.version = snapshot[h].version

PassFence(h) ==
    /\ pc[h] = "calls"
    /\ RowIsFree(h)
    /\ MayPass(h)
    /\ locker' = locker \cup {h}
    /\ passed' = [passed EXCEPT ![h] = TRUE]
    /\ pc' = [pc EXCEPT ![h] = IF Late(h) THEN "ready" ELSE "passed"]
    /\ UNCHANGED <<isolation, grant, token, valid, begun, snapshot, seen, row, data, commits, resets>>

(* The protected data is read, and the transaction works on that. *)
Work(h) ==
    /\ HasSnapshot(h)
    /\ begun[h] < Transactions
    /\ pc[h] = IF h \notin Fenced \/ Late(h) THEN "holds" ELSE "passed"
    /\ seen' = [seen EXCEPT ![h] =
                  IF isolation[h] = "repeatable read" \/ (OneStatement /\ passed[h])
                  THEN snapshot[h].data ELSE data]
    /\ pc' = [pc EXCEPT ![h] = IF h \in Fenced /\ Late(h) THEN "worked" ELSE "ready"]
    /\ UNCHANGED <<isolation, grant, token, valid, begun, snapshot, passed, row, locker, data,
                   commits, resets>>

EndTransaction(h) ==
    /\ begun' = [begun EXCEPT ![h] = @ + 1]
    /\ snapshot' = [snapshot EXCEPT ![h] = Nothing]
    /\ passed' = [passed EXCEPT ![h] = FALSE]
    /\ seen' = [seen EXCEPT ![h] = None]
    /\ locker' = locker \ {h}

(* The effects of the transaction become visible, the row lock ends. *)
DoCommit(h) ==
    /\ EndTransaction(h)
    /\ row' = IF passed[h]
              THEN [there |-> TRUE, token |-> token[h], version |-> row.version + 1] ELSE row
    /\ data' = seen[h] + 1
    /\ commits' = Append(commits, grant[h])
    /\ pc' = [pc EXCEPT ![h] = "holds"]
    /\ UNCHANGED <<isolation, grant, token, valid, resets>>

GuardCommit(h) ==
    /\ pc[h] = "ready"
    /\ CommitGuard => valid[h]
    /\ IF Pause
       THEN /\ pc' = [pc EXCEPT ![h] = "guarded"]
            /\ UNCHANGED <<isolation, grant, token, valid, begun, snapshot, passed, seen, row, locker,
                           data, commits, resets>>
       ELSE DoCommit(h)

Commit(h) ==
    /\ pc[h] = "guarded"
    /\ DoCommit(h)

(* Any error, a refusal by the fence or the guard among them.  It ends a   *)
(* CALL, and the lease with it; another session may go on under its lease. *)
Abort(h) ==
    /\ pc[h] \in {"calls", "passed", "worked", "ready", "guarded"}
    /\ EndTransaction(h)
    /\ pc' = [pc EXCEPT ![h] = IF h \in Procedures THEN "gone" ELSE "holds"]
    /\ valid' = IF h \in Procedures THEN [valid EXCEPT ![h] = FALSE] ELSE valid
    /\ UNCHANGED <<isolation, grant, token, row, data, commits, resets>>

(* ROLLBACK in a procedure, which goes on in its next transaction. *)
RollBack(h) ==
    /\ RollsBack
    /\ h \in Procedures
    /\ pc[h] \in {"passed", "worked"} \/ (pc[h] = "ready" /\ ~Late(h))
    /\ EndTransaction(h)
    /\ pc' = [pc EXCEPT ![h] = "holds"]
    /\ UNCHANGED <<isolation, grant, token, valid, row, data, commits, resets>>

Release(h) ==
    /\ pc[h] = "holds"
    /\ snapshot[h] = Nothing
    /\ pc' = [pc EXCEPT ![h] = "gone"]
    /\ valid' = [valid EXCEPT ![h] = FALSE]
    /\ UNCHANGED <<isolation, grant, token, begun, snapshot, passed, seen, row, locker, data,
                   commits, resets>>

(* The operator resets the row, when no older holder is left. *)
ResetRow ==
    /\ Reset # "no" /\ resets = 0
    /\ row.there /\ locker = {}
    /\ \A h \in Granted : token[h] <= row.token => pc[h] = "gone"
    /\ row' = [there |-> Reset = "update", token |-> 0, version |-> row.version + 1]
    /\ resets' = 1
    /\ UNCHANGED <<isolation, pc, grant, token, valid, begun, snapshot, passed, seen, locker, data,
                   commits>>

Next ==
    \/ ResetRow
    \/ \E h \in Holders :
        Begin(h) \/ Grant(h) \/ EndLease(h) \/ CallFence(h) \/ PassFence(h) \/ Work(h)
          \/ GuardCommit(h) \/ Commit(h) \/ Abort(h) \/ RollBack(h) \/ Release(h)

Spec == Init /\ [][Next]_vars

AnyHolder == Permutations(Holders)

NoStaleCommit == \A i, j \in 1 .. Len(commits) : i < j => commits[i] <= commits[j]
SeesWork == data = Len(commits)
=============================================================================
