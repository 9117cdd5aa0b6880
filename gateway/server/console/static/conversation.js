// The playground's conversation, kept for its tab and its member: a reload shows it again.
const PLACE = "conversation";

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

export const forgetConversation = () => sessionStorage.removeItem(PLACE);
