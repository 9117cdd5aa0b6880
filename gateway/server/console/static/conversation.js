// The playground's conversation, kept for its tab and its member: a reload shows it again. Its turns are
//   { role: "user", text, files: [{ name, size, part }] }, a part being one of a message's content, and
//   { role: "assistant", answers: [{ who, text, calls: [{ id, name, arguments, result }], error }] }: of each model that was
//   asked one, null where another model alone went on.
const PLACE = "conversation-turns"; // another name for turns of another shape

export function keepConversation(owner, turns) {
  try {
    sessionStorage.setItem(PLACE, JSON.stringify({ owner, turns }));
  } catch {
    sessionStorage.removeItem(PLACE); // too long to be kept, or the browser keeps nothing
  }
}

export function findConversation(owner) {
  try {
    const kept = JSON.parse(sessionStorage.getItem(PLACE));
    if (kept?.owner === owner && Array.isArray(kept.turns)) return kept.turns;
    forgetConversation();
    return [];
  } catch {
    return [];
  }
}

// What the playground has in its fields when it is opened next: `system` and `message`.
const DRAFT_PLACE = "conversation-draft";

export function keepDraft(owner, draft) {
  try {
    sessionStorage.setItem(DRAFT_PLACE, JSON.stringify({ owner, ...draft }));
  } catch {
    sessionStorage.removeItem(DRAFT_PLACE);
  }
}

export function takeDraft(owner) {
  try {
    const draft = JSON.parse(sessionStorage.getItem(DRAFT_PLACE));
    sessionStorage.removeItem(DRAFT_PLACE);
    return draft?.owner === owner ? draft : null;
  } catch {
    return null;
  }
}

export const forgetConversation = () => sessionStorage.removeItem(PLACE);
