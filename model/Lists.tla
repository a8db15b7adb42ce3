------------------------------- MODULE Lists -------------------------------
(* A change of the list of nodes on running hosts: from the old list, by   *)
(* both lists, on to the new list or back to the old list.                 *)
(*                                                                         *)
(* Exclusive: at no time two hosts hold the lock, though their lists       *)
(* differ.                                                                 *)
(*                                                                         *)
(* There is no time.  A host may hang at any point, nodes forget a silent  *)
(* host, and a host restarts with any list that its operator may have left *)
(* there.  README.md tells which function of the code does each action.    *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Hosts,
    OldNodes, NewNodes,
    Start,          \* the lists at first: {"old"} or both
    Joint,          \* a host with both lists needs a majority of each list
    Announces,      \* a host tells the nodes of a step before the step
    Hears,          \* the step needs answers of "a majority", or a variant: of "one node"
    Compares,       \* a host waits for hosts that would not be excluded after the step
    TellsHeld,      \* an entry names the list of a lease that is not on both lists
    Waits,          \* a host waits until leases of forgotten hosts have ended
    Marks,          \* nodes keep the list that replaced theirs
    File,           \* a host with both lists restarts with both lists
    Hangs,          \* a variant: a host hangs between its last look and its step
    Changing,       \* the hosts that are given the new list
    GoOn, GoBack,   \* the hosts that take this step
    GoBackAlone,    \* the hosts that go back while the new list's nodes do not answer
    Silent,         \* the hosts that hang, and are forgotten
    Restarted,      \* the hosts that restart
    Versions        \* so many marks are written, at most

VARIABLES
    changed,        \* the hosts that were given the new list, each host once
    lists,          \* of each host: the lists in force
    lease,          \* the lists that grant the host's lease; {}: the host has no lease
    takes,          \* the hosts that may take locks
    step,           \* the step that the host is about to take
    clear,          \* the nodes that answered since, without an obstacle
    read,           \* the version of the mark in the answer
    decided,        \* in the variant: hosts after the last look
    entry,          \* at each node, of each host
    mark,           \* at each node: the version of its mark; 0: none
    marked          \* the list that each version names

vars == <<changed, lists, lease, takes, step, clear, read, decided, entry, mark, marked>>
atNodes == <<entry, mark, marked>>

Nodes == OldNodes \cup NewNodes
Both == {"old", "new"}
Members(list) == IF list = "old" THEN OldNodes ELSE NewNodes
MembersOf(some) == UNION {Members(list) : list \in some}
IsMajority(nodes, list) ==
    2 * Cardinality(nodes \cap Members(list)) > Cardinality(Members(list))
IsQuorum(nodes, some) == \A list \in some : IsMajority(nodes, list)

Gone == [lists |-> {}, held |-> {}, step |-> "none"]
Nothing == [n \in Nodes |-> 0]
(* "alone": back, while the new list's nodes do not answer. *)
Target(s) == IF s = "on" THEN "new" ELSE "old"
After(e) == IF e.step = "none" THEN e.lists ELSE {Target(e.step)}

(* What the host writes. *)
Own(h) ==
    [lists |-> lists[h],
     held |-> IF TellsHeld /\ lease[h] # lists[h] THEN lease[h] ELSE {},
     step |-> IF ~Announces THEN "none" ELSE IF step[h] = "alone" THEN "back" ELSE step[h]]

Init ==
    /\ changed = IF Start = Both THEN Hosts ELSE {}
    /\ lists = [h \in Hosts |-> Start]
    /\ lease = [h \in Hosts |-> {}]
    /\ takes = Hosts
    /\ step = [h \in Hosts |-> "none"]
    /\ clear = [h \in Hosts |-> {}]
    /\ read = [h \in Hosts |-> Nothing]
    /\ decided = {}
    /\ entry = [n \in Nodes |-> [h \in Hosts |-> IF n \in MembersOf(Start) THEN Own(h) ELSE Gone]]
    /\ mark = Nothing
    /\ marked = <<>>

(* The host has other questions now, so former answers do not count. *)
AskAnew(h) ==
    /\ clear' = [clear EXCEPT ![h] = {}]
    /\ read' = [read EXCEPT ![h] = Nothing]

------------------------------------------------------------------------------
(* The lock *)

(* A node grants the lock to one host, so two leases never have a list in   *)
(* common.                                                                  *)
Free(some, h) == \A g \in Hosts \ {h} : lease[g] \cap some = {}

Grant(h) ==
    /\ h \in takes /\ lease[h] = {}
    /\ IF Joint
       THEN /\ Free(lists[h], h)
            /\ lease' = [lease EXCEPT ![h] = lists[h]]
       ELSE \E list \in lists[h] : Free({list}, h) /\ lease' = [lease EXCEPT ![h] = {list}]
    /\ UNCHANGED <<changed, lists, takes, step, clear, read, decided, atNodes>>

(* A lease from before the change gets a majority of the new list, too. *)
Settle(h) ==
    /\ h \notin decided
    /\ lists[h] = Both /\ lease[h] = {"old"} /\ Free({"new"}, h)
    /\ lease' = [lease EXCEPT ![h] = Both]
    /\ UNCHANGED <<changed, lists, takes, step, clear, read, decided, atNodes>>

End(h) ==
    /\ lease[h] # {}
    /\ lease' = [lease EXCEPT ![h] = {}]
    /\ UNCHANGED <<changed, lists, takes, step, clear, read, decided, atNodes>>

------------------------------------------------------------------------------
(* Entries at the nodes *)

(* Another host's entry that stands in the way of this host: of its begin,  *)
(* or of its step.                                                          *)
IsObstacle(h, e) ==
    /\ e # Gone
    /\ LET then == IF step[h] = "none" THEN lists[h] ELSE {Target(step[h])}
           apart == then \cap e.lists = {} \/ (e.held # {} /\ then \cap e.held = {})
           leads == then \cap After(e) = {}
       IN \/ apart /\ (Compares \/ step[h] = "none")
          \/ leads /\ e.step # "none"

(* So few nodes still know the host that it may not be seen. *)
IsForgotten(g) == ~IsQuorum({n \in Nodes : entry[n][g] # Gone}, lists[g])

(* The lease of a forgotten host ends in time.  A host waits for that time  *)
(* before the answers count for its step.                                   *)
IsTooSoon(h) ==
    /\ Waits /\ step[h] \in {"on", "back"}
    /\ \E g \in Hosts \ {h} :
        IsForgotten(g) /\ lease[g] # {} /\ Target(step[h]) \notin lease[g]

(* The node writes the entry and answers in one step. *)
Beat(h, n) ==
    /\ n \in MembersOf(lists[h]) /\ h \notin decided
    /\ entry' = [entry EXCEPT ![n][h] = Own(h)]
    /\ LET single == step[h] = "none" /\ h \notin takes /\ lists[h] # Both
           counts == /\ step[h] # "none" \/ single
                     /\ ~IsTooSoon(h)
                     /\ \A g \in Hosts \ {h} : ~IsObstacle(h, entry[n][g])
       IN /\ clear' = [clear EXCEPT ![h] = IF counts THEN @ \cup {n} ELSE @ \ {n}]
          /\ read' = [read EXCEPT ![h][n] =
                         IF counts /\ (single \/ step[h] = "alone") THEN mark[n] ELSE 0]
    /\ UNCHANGED <<changed, lists, lease, takes, step, decided, mark, marked>>

(* The latest mark of these lists that counts, or 0.  A mark does not count *)
(* if a majority of a list lacks the mark.                                  *)
Latest(h, some) ==
    LET counts == {v \in 1 .. Len(marked) :
                     /\ \E n \in clear[h] : read[h][n] = v
                     /\ \A list \in some : ~IsMajority({n \in clear[h] : read[h][n] # v}, list)}
    IN IF counts = {} THEN 0 ELSE CHOOSE v \in counts : \A w \in counts : v >= w

IsLeft(h, some) == Marks /\ LET v == Latest(h, some) IN v > 0 /\ marked[v] \notin some

Begin(h) ==
    /\ h \notin takes /\ h \notin decided
    /\ step[h] = "none" \/ lists[h] = Both
    /\ IF lists[h] = Both
       THEN IsQuorum({n \in Nodes : entry[n][h] = Own(h)}, Both)
       ELSE IsQuorum(clear[h], lists[h]) /\ ~IsLeft(h, lists[h])
    /\ takes' = takes \cup {h}
    /\ IF step[h] = "none" THEN AskAnew(h) ELSE UNCHANGED <<clear, read>>
    /\ UNCHANGED <<changed, lists, lease, step, decided, atNodes>>

(* The host hangs, or is cut off, and takes no locks before it has looked   *)
(* again.                                                                   *)
Lapse(h) ==
    /\ h \in Silent /\ h \in takes
    /\ takes' = takes \ {h}
    /\ IF step[h] = "none" THEN AskAnew(h) ELSE UNCHANGED <<clear, read>>
    /\ UNCHANGED <<changed, lists, lease, step, decided, atNodes>>

(* A node forgets a host that was silent there, or has left the node, for   *)
(* 45 s.  A host that takes locks was silent at a minority only.  Answers   *)
(* count for 15 s, so answers from before the silence count no more.        *)
Forget(h, n) ==
    /\ h \in Silent \/ n \notin MembersOf(lists[h])
    /\ entry[n][h] # Gone
    /\ entry' = [entry EXCEPT ![n][h] = Gone]
    /\ h \in takes => IsQuorum({m \in Nodes : entry'[m][h] # Gone}, lists[h])
    /\ clear' = [g \in Hosts |-> {}]
    /\ read' = [g \in Hosts |-> Nothing]
    /\ UNCHANGED <<changed, lists, lease, takes, step, decided, mark, marked>>

------------------------------------------------------------------------------
(* The change *)

NextList(h) ==
    /\ lists[h] = {"old"} /\ h \in Changing \ changed
    /\ changed' = changed \cup {h}
    /\ lists' = [lists EXCEPT ![h] = Both]
    /\ takes' = takes \ {h}
    /\ AskAnew(h)
    /\ UNCHANGED <<lease, step, decided, atNodes>>

Announce(h) ==
    /\ lists[h] = Both /\ step[h] = "none"
    /\ \E s \in (IF h \in GoOn THEN {"on"} ELSE {}) \cup (IF h \in GoBack THEN {"back"} ELSE {})
               \cup (IF h \in GoBackAlone THEN {"alone"} ELSE {}) :
         step' = [step EXCEPT ![h] = s]
    /\ AskAnew(h)
    /\ UNCHANGED <<changed, lists, lease, takes, decided, atNodes>>

Withdraw(h) ==
    /\ step[h] # "none" /\ h \notin decided
    /\ step' = [step EXCEPT ![h] = "none"]
    /\ AskAnew(h)
    /\ UNCHANGED <<changed, lists, lease, takes, decided, atNodes>>

(* The lists whose nodes must answer. *)
Asked(h) == IF step[h] = "alone" THEN {"old"} ELSE Both

HasHeard(h) ==
    /\ IF Hears = "a majority" THEN IsQuorum(clear[h], Asked(h))
       ELSE \A list \in Asked(h) : clear[h] \cap Members(list) # {}
    /\ step[h] = "alone" => ~IsLeft(h, {"old"})

WriteMark(h, n) ==
    /\ Marks /\ step[h] # "none" /\ h \notin decided
    /\ HasHeard(h)
    /\ LET to == Target(step[h])
           last == Len(marked)
           known == last > 0 /\ marked[last] = to
       IN /\ known \/ last < Versions
          /\ marked' = IF known THEN marked ELSE Append(marked, to)
          /\ mark[n] # Len(marked')
          /\ mark' = [mark EXCEPT ![n] = Len(marked')]
    /\ UNCHANGED <<changed, lists, lease, takes, step, clear, read, decided, entry>>

MayStep(h) ==
    /\ HasHeard(h)
    /\ Marks => IsQuorum({n \in Nodes : mark[n] > 0 /\ marked[mark[n]] = Target(step[h])},
                        Asked(h))

Decide(h) ==
    /\ Hangs /\ step[h] # "none" /\ h \notin decided
    /\ MayStep(h)
    /\ decided' = decided \cup {h}
    /\ UNCHANGED <<changed, lists, lease, takes, step, clear, read, atNodes>>

(* A lease on both lists drops the list that is left.  A lease on the left  *)
(* list alone stays there.                                                  *)
Step(h) ==
    /\ step[h] # "none"
    /\ IF Hangs THEN h \in decided ELSE MayStep(h)
    /\ LET to == Target(step[h])
       IN /\ lists' = [lists EXCEPT ![h] = {to}]
          /\ lease' = [lease EXCEPT ![h] = IF to \in @ THEN {to} ELSE @]
    /\ step' = [step EXCEPT ![h] = "none"]
    /\ takes' = takes \ {h}
    /\ decided' = decided \ {h}
    /\ AskAnew(h)
    /\ UNCHANGED <<changed, atNodes>>

(* The server stops, and starts with the file of the joint lists, or with   *)
(* the lists of its configuration.  The operator may have left the old list *)
(* there.                                                                   *)
Restart(h) ==
    /\ h \in Restarted
    /\ \E some \in {{"old"}, IF lists[h] = Both /\ ~File THEN {"new"} ELSE lists[h]} :
         lists' = [lists EXCEPT ![h] = some]
    /\ lease' = [lease EXCEPT ![h] = {}]
    /\ takes' = takes \ {h}
    /\ step' = [step EXCEPT ![h] = "none"]
    /\ decided' = decided \ {h}
    /\ AskAnew(h)
    /\ UNCHANGED <<changed, atNodes>>

Next ==
    \E h \in Hosts :
        \/ Grant(h) \/ Settle(h) \/ End(h) \/ Begin(h) \/ Lapse(h)
        \/ NextList(h) \/ Announce(h) \/ Withdraw(h) \/ Decide(h) \/ Step(h) \/ Restart(h)
        \/ \E n \in Nodes : Beat(h, n) \/ Forget(h, n) \/ WriteMark(h, n)

Spec == Init /\ [][Next]_vars

AnyNodeOrder == Permutations(OldNodes) \cup Permutations(NewNodes)
AnyOrder == Permutations(Hosts) \cup AnyNodeOrder

------------------------------------------------------------------------------

Exclusive == Cardinality({h \in Hosts : lease[h] # {}}) <= 1
=============================================================================
