"""How people word a rule, and how they take one back, in the languages they mostly write.

Patterns only. Each may match too much rather than too little: a message that is taken for a rule
without need costs a few tokens, one that is not taken for one may be lost. What is searched for
anywhere in a sentence is written in small letters and meant for a sentence in small letters:
ignoring case would make the search several times as slow.
"""

import re

from proxy.compaction.sentences import stems

_LABEL = r"^(?:[-*•\d.)\s]*)(?:[\w /-]{2,40}:\s*)?(?:\W*)"

ENGLISH = re.compile(
    r"\b(?:always|never|from (?:now|here|today|this point) on|henceforth|going forward"
    r"|in (?:the )?future\b|at all times|under no circumstances|in no case|no matter (?:what|how)"
    r"|must(?:n['\u2019]t)?|may not|(?:may|can|should) only|only (?:ever|use"
    r"|touch|edit|change|write"
    r"|answer|reply|report|when|after|if|with|in|by|from|to)|not allowed|forbidden|prohibited"
    r"|off[- ]limits|refrain|make sure|be sure to|ensure|every time|each time|whenever"
    r"|by default|without (?:(?:my|explicit|prior|first|a|the|any|your|our)\s+)*"
    r"(?:approv\w+|consent|permission|asking|confirm\w+|review\w*|safe ?word|second \w+|\w+ing)"
    r"|until (?:i|we|the|you|it|they|he|she|[a-z]+ [a-z]+ (?:approv|review|confirm|sign|say)\w*"
    r"|\w+ (?:approv|review|confirm|sign|say)\w*)|before (?:you|any|each|every|all)"
    r"|stick (?:to|with)|prefer\w*|i(?:['\u2019]d| would) (?:rather|like|prefer)"
    r"|(?:i|we|users?|the user|they) (?:always |never |only )?wants?"
    r"|should (?:never|always|not|stay|remain|be)|have to|has to|ha[sd] to stay|needs? to stay"
    r"|no longer|anymore|instead of|rather than|as of (?:now|today)|keep (?:it|all|every|the|your"
    r"|\w+ )|avoid|no exceptions?|without exception|regardless|unless|except|approval from"
    r"|approving|(?:is|are) (?:fixed|final)|do(?:es)? not move|escalate|remember (?:to|that)"
    r"|do not|don['\u2019]t|dont|cannot|can['\u2019]t|stop (?:\w+ing)|(?:must"
    r"|to) stay|at most|at least"
    r"|no more than|(?:is|are) capped|user['\u2019]s (?:\w+ )*(?:style|language"
    r"|code|day|format|unit))\b",
)
ENGLISH_COMMAND = re.compile(
    _LABEL + r"(?:(?:for|in|when|on|while|with)\b[^,]{1,60},\s*)?(?:please\s+|also\s+"
    r"|and\s+|then\s+|ok(?:ay)?[,.]?\s+|for the record[,:]\s+)*"
    r"(?:(?:no|zero|never|only|always|all|every|each|any)\s+\w"
    r"|(?:use|keep|report|send|write|answer|reply|respond|put|show|run|leave|treat|name|format"
    r"|call|speak|ask|check|wrap|end|start|begin|limit|mention|include|quote|cite|sign|log"
    r"|address|commit|state|list|return|save|store)\b.*"
    r"\b(?:all|every|each|any|always|in [A-Z]?\w+(?: \w+){0,2} (?:style|units?|language|format|time"
    r"|order)|style|throughout|everywhere|for this (?:user|session|project)|to me|with me"
    r"|confirmations?|in (?:english|german|french|spanish|italian|portuguese|chinese|japanese"
    r"|korean|russian|metric|utc)|only|first|on (?:mon|tues|wednes|thurs|fri|satur|sun)day\w*))",
    re.I,
)
MANNER = re.compile(
    _LABEL + r"(?:please\s+|also\s+|and\s+)*(?:"
    r"(?:skip|leave)\b.*\b(?:alone|out|for now|as (?:it|they) (?:is|are))|hands off"
    r"|stay (?:out|away)"
    r"|keep (?:away|out|off)|do(?:n['\u2019]t| not) bother|treat\b.*\bas\b|(?:limit|restrict"
    r"|confine) (?:yourself|changes|edits|all|the|your|it|them|this|any|every)\b"
    r"|(?:ask|check with|tell|consult|notify|warn|confirm with) (?:me|us)\b.*\b(?:before"
    r"|prior|first|if"
    r"|when|each|every)|(?:get|wait for|seek) (?:my|our)\b|wait for\b.*\bbefore\b"
    r"|(?:bear|keep) in mind|(?:note|mind) that|be (?!there|here|sure\b)[a-z]+|assume\b|do no\b"
    r"|(?:call|address) me\b|one [\w-]+ per \w+|[\w ]{2,30} first, then\b|squash\b|cite\b"
    r"|(?:answer|reply|respond|write|speak|explain|log|output|print|return|report|comment|document)"
    r" (?:only |it |them |everything )?(?:in|as|with|like|to|briefly|shortly|concisely|tersely"
    r"|json|yaml|xml|csv|markdown|plain|[A-Z][a-z]+ with)\b|output [A-Z]{3,}"
    r"|(?:short|brief|terse|concise|long|detailed|plain) (?:answers?|replies|texts?|messages?"
    r"|summar\w+)"
    r"|(?:all |the )?(?:numbers|prices|dates|times|sizes|units|commit messages|comments|names"
    r"|answers"
    r"|replies|messages|summaries|reports|identifiers|variables|docs|tests) (?:in|with|as|go"
    r"|are|stay)\b"
    r"|(?!it\b|that\b|this\b|the\b|there\b)[\w ]{2,40}, not [\w ]{2,30}[.!]?$"
    r"|nothing\b|nobody\b|(?:my|our) [\w -]{2,40} (?:is|are|must)\b|make no\b|no \w+"
    r")",
    re.I,
)
"""How something is to be done: short commands that need no word of scope."""

HABIT = re.compile(
    r"\b(?:we (?:never|always|don['\u2019]t|do not) (?!know|see|have|understand|need|think|saw|got"
    r"|had|mind|care|get|\w+ed\b)\w+|i (?:like|love|hate|dislike|expect|insist|can['\u2019]t stand)"
    r"|exclusively|nowhere else|unacceptable|acceptable|read-only|whatever you do|untouched"
    r"|in (?:separate|small steps)|as (?:a (?:table|list|diff|patch)|long as)"
    r"|use [\w ]+ (?:spelling|system|style)|not to be|while we|for (?:now|(?:this|our"
    r"|the rest of (?:this|the|our)) (?:session|project|task|chat|conversation|work))"
    r"|no circumstances?|before \w+ing|(?:my|our) (?:approval|consent|permission|go-ahead|review"
    r"|okay|ok))\b|^\W*(?:prefix|suffix|refer to|do (?:all|every))\b",
)
"""Customs of a project or a person, and how long something holds."""

SELF_REPORT = re.compile(
    r"\b(?:i|we|it|they|he|she|that|which|tests?|code) (?:do(?:es)?n['\u2019]t|do(?:es)? not|cannot"
    r"|can['\u2019]t|had to|never|always|no longer|must have)\b(?! (?:want"
    r"|like|allow|wish|accept))",
)
EUROPEAN = re.compile(
    # German
    r"\b(?:immer|nie|niemals|ab (?:jetzt|sofort|heute)|von (?:nun|jetzt) an|künftig|in zukunft"
    r"|auf keinen fall|keinesfalls|stets|grundsätzlich|ausschließlich|dar(?:f"
    r"|fst|fen) (?:\w+ ){0,3}"
    r"(?:nicht|nur|nie)|muss|müssen|musst|bitte (?:nur|nicht|keine\w*)|verwende|vermeide\w*"
    r"|bevorzug\w*|lieber|verboten|nicht erlaubt|solange|bis (?:ich|wir)|kein(?:e[nrms]?)? \w+"
    r"|nur noch|(?:antworte|schreibe?|benutze?|nutze?|lösche?|ändere?|committe|pushe?) \w+"
    r"|jede[rnsm]?|alle[rnsm]?|dürfen|frag mich|fasse dich|halte dich|ohne \w+"
    r"|beachte|beim \w+ immer"
    # French
    r"|sans \w+|demande[zr]?[- ]moi|réponds|sois|évitez?|veille[zr]?"
    r"|toujours|jamais|désormais|dorénavant|à partir de maintenant|en aucun cas|il faut|doi(?:s|t)"
    r"|doivent|devez|uniquement|seulement|interdit\w*|évite[zr]?|préfèr\w*|jusqu['\u2019]à ce que"
    r"|tant que|n(?:e |['\u2019])\w+ (?:\w+ )?(?:pas|jamais|plus|que|rien)"
    r"|réponds|répondez|utilise[zr]?"
    # Spanish
    r"|sin \w+|pregúntame|consúltame|escribe|sé \w+"
    r"|siempre|nunca|jamás|a partir de ahora|desde ahora|de ahora en adelante|en ningún caso"
    r"|debes?|deben|sólo|solo|únicamente|solamente|prefier\w*|evita\w*|hasta que|prohibid\w*"
    r"|no (?:uses|hagas|toques|borres|modifiques|cambies|subas|escribas|envíes|ejecutes"
    r"|\w+[ae]s (?:el|la|los|las|un|una|nada|en|mis?|este|esta|más))"
    r"|responde|utiliza|usa"
    # Italian
    r"|senza \w+|chiedimi|scrivi|sii"
    r"|sempre|non \w+ mai|mai \w+re|d['\u2019]ora in poi|da ora in poi|in nessun caso|dev(?:e"
    r"|i|ono)|soltanto"
    r"|esclusivamente|preferi\w*|evitare|finché|fino a quando|vietato|non (?:\w+re|devi|deve"
    r"|usare|toccare)|rispondi|usare"
    # Portuguese
    r"|sem \w+|pergunte-me|escreva|seja"
    r"|daqui em diante|de agora em diante|a partir de agora|em nenhuma hipótese|somente|apenas"
    r"|prefir\w*|evite\w*|até que|proibid\w*|não (?:\w+)|nunca|deve|responda"
    # Dutch, Polish, Turkish, Vietnamese
    r"|altijd|nooit|vanaf nu|voortaan|alleen|moet|niet (?:meer )?\w+en|zawsze|nigdy|od teraz"
    r"|nie wolno|tylko|musi(?:sz|my|cie)?|her zaman|asla|bundan sonra|sadece|luôn"
    r"|không bao giờ|từ giờ|chỉ"
    r"|đừng)\b"
    # Russian and Ukrainian
    r"|\b(?:спрашивай\w*|перед \w+|кратко|пиши|всегда|никогда|отныне|впредь"
    r"|\u0441 этого момента|нельзя|долж\w+|только|исключительно"
    r"|предпочит\w*|избега\w*|до тех пор|пока я|пока не|запрещ\w*|обязательно|ни в коем случае"
    r"|не (?:\w+(?:й|йте|ть|и|ите|ти|ь))|используй\w*|отвечай\w*|пиши\w*|завжди|ніколи|відтепер"
    r"|тільки|повинн\w+)\b",
)
ASIAN = re.compile(
    "不允许|所有|每次|先问|要简短|简短|都写|写成|[用以].{1,8}[写答回]"
    "|で書いて|短く|確認して|물어|짧게|로 써"
    "|永远|始终|总是|務必|务必|必须|必須|不得|不要|不准|不许|禁止|从现在|今后"
    "|以后|往后|只能|只用|只可|只允许"
    "|请勿|切勿|绝不|绝对|千万|优先|尽量|直到|除非|一律|不能|不可|应当|请用"
    "|请使用|都要|都用|偏好|更喜欢"
    "|常に|必ず|絶対|今後|これから|以降|ないで|てはいけ|てはなら|のみ|だけ"
    "|なければ|ようにして|までは|優先"
    "|控えて|しないこと|すること|使って|してください|好み"
    "|항상|절대|앞으로|지금부터|이제부터|하지 ?마|지 ?마|말아|말고|말 것|금지"
    "|반드시|꼭|만 사용|해야|선호|대신"
    "|않도록|하세요|해 ?줘|해 ?주세요"
    "|हमेशा|कभी|अब से|केवल|मत "
    "|دائما|دائمًا|أبدا|أبدًا|من الآن|يجب|فقط|لا ت"
)

RULE_NOUN = re.compile(
    r"\b(?:rules?|constraints?|restrictions?|requirements?|instructions?"
    r"|preferences?|limits?|limitation"
    r"|bans?|polic(?:y|ies)|prohibition|regel\w*|vorgabe\w*|verbot|einschränkung|anweisung"
    r"|r[èe]gles?|contraintes?|consignes?|interdictions?|reglas?|restricci[oó]n\w*|prohibición"
    r"|regol[ae]|vincol[oi]|diviet[oi]|regras?|restriç\w+|proibição|правил\w+"
    r"|ограничени\w+|запрет\w*"
    r"|(?:what|as) i (?:said|asked|told)|scratch that|never ?mind that)\b"
    "|规则|要求|限制|约定|规定|禁令|ルール|制約|規則|指示|規定|규칙|제약|지시|요구",
)
"""What a sentence names that takes a rule back."""

LIFTED = re.compile(
    r"\b(?:no longer (?:applies|apply|needed|necessary|required|holds?|valid|in force|need|have to"
    r"|must|prefer|want)|(?:doesn['\u2019]t|does not|don['\u2019]t|do not) (?:apply|hold|need to"
    r"|have to|matter)|not (?:needed|required|necessary) any ?more)\b"
    r"|\b(?:gilt (?:ab (?:jetzt|sofort) )?nicht mehr|nicht mehr (?:nötig|gültig|erforderlich"
    r"|notwendig)|aufgehoben|zurückgenommen|zurückgezogen|ne (?:s['\u2019]applique"
    r"|vaut|compte) plus"
    r"|n['\u2019]est plus|plus (?:nécessaire|besoin|valable)|ya no|queda sin efecto"
    r"|non (?:vale|serve|è) più|não (?:vale|precisa|é) mais|больше не|не действует)\b"
    "|不再|作废|无需再|不用再|適用されません|もう不要|必要はありません|더 이상|필요 없",
)
"""Says that something no longer holds."""

LIFTS = re.compile(
    r"\b(?:forget|ignore|drop|lift|cancel|revoke|withdraw|remove|scrap|scratch|waive|rescind"
    r"|retract|undo|disregard|overrule|suspend)(?:s|ed|ing)?\b|\b(?:dropped"
    r"|cancelled|withdrawn|void"
    r"|never ?mind)\b"
    r"|\b(?:vergiss|hebe|ziehe|streiche|ignoriere|oublie[zr]?|annule[zr]?|lève\w*|olvida|anula\w*"
    r"|cancela\w*|retiro|dimentica\w*|annull\w+|esqueç\w+|cancele|revogo"
    r"|забудь\w*|отмен\w+|снима\w+"
    r"|отзыва\w+)\b"
    "|忘记|忘掉|取消|撤销|撤回|废除|忘れて|取り消|撤回|解除|廃止|잊어|취소|철회|해제",
)
"""Takes back what it names; with a rule it is a withdrawal, with a file it is a task."""

REMINDS = re.compile(
    r"\b(?:do not|don['\u2019]t|never|not|mustn['\u2019]t|must not) (?:ever )?(?:forget"
    r"|ignore|drop|lift"
    r"|cancel|revoke|withdraw|remove|waive|disregard)\b|\bvergiss (?:\w+ ){0,4}nicht\b"
    r"|\bn['\u2019]oublie"
    r"|\bno (?:olvid|anul|cancel)|\bnon dimentic|\bnão (?:esque|cancel)|\bн\u0435 забу"
    "|别忘|不要忘|忘れない|잊지",
)
"""Looks like a withdrawal and is its opposite."""

PERMITTED = re.compile(
    r"\b(?:you|the assistant) (?:can|may|could)\b.*\b(?:now|again|after all|from now on)\b"
    r"|\bnow you (?:can|may)\b|\bfeel free to\b|\b(?:it['\u2019]s"
    r"|it is) (?:now )?(?:fine|ok|okay|allowed"
    r"|all right|alright) (?:for you )?(?:now )?to\b|\b(?:is|are) (?:now )?(?:allowed"
    r"|permitted|fine|ok"
    r"|okay)\b|\bdarfst (?:du )?(?:jetzt|wieder|nun|ab (?:jetzt|sofort))\b"
    r"|\b(?:tu peux|vous pouvez) (?:maintenant|désormais|à nouveau|de nouveau)\b"
    r"|\b(?:ahora (?:sí )?puedes|puedes (?:ahora|volver)|ora puoi|puoi (?:ora|di nuovo)"
    r"|agora pode|pode (?:agora|voltar))\b|\b(?:теперь можно|можешь (?:теперь|снова))\b"
    "|现在可以|可以再次|してもいい|しても構|てもよい|해도 (?:돼|됩|좋|된)",
)
LIFTING_WORDS = stems(
    "forget ignore dropped lifted cancel revoke withdraw withdrawn remove scrap scratch"
    " waive rescind"
    " retract undo disregard longer applies apply needed necessary required holds valid force need"
    " want matter gone anymore never mind now again allowed permitted fine okay free feel after all"
    " restriction constraint instruction requirement earlier previous asked told said"
    " vergiss gilt mehr nicht regel vorgabe aufgehoben darfst jetzt wieder hebe"
    " oublie règle applique plus peux maintenant annule olvida regla puedes ahora anula"
    " dimentica regola vale più ora puoi annulla esqueça regra agora pode mais"
    " забудь правило отменяю больше теперь можно можешь снова"
)

REFERS = re.compile(
    r"\b(?:that|this|the|my|last|previous|earlier|above)\s+(?:\w+\s+)?(?:rule"
    r"|constraint|restriction"
    r"|instruction|requirement|preference|request)s?\b|\bscratch that\b|\bnever ?mind that\b"
    r"|\b(?:die|diese|letzte) (?:regel|vorgabe)|\bcette règle|\b(?:esa|esta|la) regla"
    r"|\b(?:questa|quella) regola|\b(?:essa|esta) regra|это правило|这条规则|那条规则|这个规则"
    r"|そのルール|このルール|그 규칙|이 규칙",
    re.I,
)
RULE_LABEL = re.compile(
    r"\W*(?:[\w-]+ )?(?:rules?|constraints?|preferences?|requirements?|polic(?:y|ies)|restrictions?"
    r"|conventions?|important|regel|vorgabe|règle|contrainte|regla|restricción|regola|vincolo|regra"
    r"|restrição|правило|ограничение|规则|约束|偏好|要求|ルール|制約|규칙|제약)\s*[:\uff1a]",
    re.I,
)
_TRIGGER_WORDS = """
    always never from henceforth forward future times circumstances case matter must mustn may only
    allowed forbidden prohibited limits refrain make sure ensure every each time whenever default
    without until before stick prefer prefers preferred preference preferably rather would like want
    wants should have has needs need longer anymore instead now today keep avoid no exception
    exceptions regardless unless except approval approving fixed final move escalate remember not
    don dont cannot can stop stay most least more capped style language code day format unit all any
    everywhere throughout only first confirmations zero user use report send write answer reply
    respond put show run leave treat name call speak ask check wrap end start begin limit mention
    include quote cite sign log address commit state list return save store
    skip leave hands treat limit restrict confine confirm tell consult notify warn get seek bear
    mind note be assume address one squash output log print explain short brief terse concise long
    detailed plain numbers prices dates sizes units commit comments names answers replies messages
    summaries reports identifiers variables docs tests nothing nobody my our hate dislike expect
    insist while session project small steps circumstance love wait documents document comment
    alone per exclusively nowhere acceptable unacceptable untouched separate table
    list diff patch spelling system prefix suffix refer whatever read
    rule rules constraint constraints preferences requirement requirements policy policies
    restriction restrictions convention conventions important
"""
TRIGGERS = frozenset(_TRIGGER_WORDS.split())
"""Words of which an English rule has at least one; a sentence without is let go."""

_FOREIGN_TRIGGER_WORDS = """
    jede jeder jedes jeden alle aller alles zukunft zaman ahora faut
    frag fasse halte ohne beachte sans demande demandez sois veillez sin escribe senza chiedimi
    scrivi sii sem pergunte escreva seja consulta
    immer nie niemals ab von auf keinesfalls stets darf darfst muss musst bitte verwende vermeide
    vermeiden lieber verboten nicht solange bis kein keine keinen keiner nur antworte schreib
    schreibe benutze nutze regel vorgabe bevorzuge bevorzugt
    toujours jamais partir aucun dois doit doivent devez uniquement seulement interdit interdite
    tant jusqu utilise utilisez
    siempre nunca desde debe debes deben solo solamente prefiero prefiere evita evitar hasta
    prohibido prohibida responde utiliza usa regla
    sempre mai ora deve devi devono soltanto esclusivamente preferisco preferisce evitare vietato
    non rispondi usare regola vincolo fino
    daqui agora partir somente apenas prefira prefiro evite proibido responda regra
    altijd nooit vanaf voortaan alleen moet niet zawsze nigdy od nie tylko musi musisz asla
    bundan sadece
"""
FOREIGN_TRIGGERS = frozenset(_FOREIGN_TRIGGER_WORDS.split())
"""The same for what `EUROPEAN` finds in unaccented letters."""

ASCII_WORD = re.compile(r"[a-z]+")


_LIFTING_VERBS = """
    forget forgets drop drops dropped dropping lift lifts lifted lifting cancel cancels canceled
    cancelled revoke revokes revoked withdraw withdraws withdrawn remove removed scrap scratch waive
    waived rescind retract retracted undo ignore ignored disregard longer apply matter hold void
    overrule suspend suspended mind anymore now again after free fine ok okay
    allowed permitted alright
    vergiss gilt mehr aufgehoben hebe ziehe streiche ignoriere darfst oublie oubliez plus annule
    annulez peux pouvez olvida ya anula cancela retiro queda ahora puedes dimentica annulla
    annullo pi ora puoi esquece mais agora pode cancele revogo
"""
LIFTING = frozenset(_LIFTING_VERBS.split())
